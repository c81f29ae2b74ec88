"""Parser that turns ``rlinf-launch``'s arguments and variables into ``Options``, driven by the table of flags."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlinf_async import settings
from rlinf_async._core import dialect
from rlinf_async.errors import ConfigError

from ..options import Options
from ..remote.exported_env import chosen
from ..source_text import suggestion
from .flag_values import FlagValue, split_shell
from .flags import BY_SPELLING, FLAGS, FOREIGN, GROUPS, Flag

_POST_MORTEM_S = "3600"
"""Seconds that ``--pdb`` keeps a failed rank alive for an operator before the run ends."""

_PLACES = ("where", "the way to the hosts")  # groups of flags that a script is unlikely to have itself

# Maps each flag whose value is optional (empty if omitted) to a test of whether the next word is the value.
_MAY_STAND_ALONE: dict[str, Callable[[str], bool]] = {
    "sync": os.path.isdir,
    "show-placement": lambda word: word.endswith((".yaml", ".yml")),
}


@dataclass
class _GivenWords:
    given: dict[str, list[FlagValue]] = field(default_factory=dict)
    script: str | None = None
    args: tuple[str, ...] = ()


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse ``rlinf-launch``'s arguments and environment variables.  Raises ConfigError for wrong usage."""
    words = _read_argv(list(argv))
    for flag in FLAGS:
        text = environ.get(flag.variable, "") if flag.has_twin else ""
        if text and (flag.repeats or flag.name not in words.given):  # a flag overrides its variable, unless it repeats
            twins = [FlagValue(each, f"${flag.variable}") for each in _shell_words(text, flag)]
            words.given[flag.name] = twins + words.given.get(flag.name, [])
    given = [flag for flag in FLAGS if flag.name in words.given]
    read = {flag.name.replace("-", "_"): flag.read_all(words.given[flag.name]) for flag in given}
    read["verbosity"] = min(2, read.pop("verbose", 0)) - read.pop("quiet", False)
    read["ssh_args"] = sum(read.get("ssh_args", ()), ())
    options = Options(script=words.script, args=words.args, **read)
    _check_together(options)
    return options


def flags_behind(args: Sequence[str]) -> list[str]:
    """Return the launcher's long flags that follow the script and may have been meant for the launcher."""
    where = {spelling for group in _PLACES for flag in GROUPS[group] for spelling in flag.spellings}
    words = dict.fromkeys(word.partition("=")[0] for word in args)
    return [word for word in words if word.startswith("--") and word in where]


def exported(environ: Mapping[str, str], options: Options) -> dict[str, str]:
    """Return the variables for every node, sorted by name; see `rlinf_launcher.remote.exported_env.chosen`."""
    variables = chosen(environ, options.export, options.env_file, options.env)
    if options.pdb:
        variables = {settings.POST_MORTEM_S.variable: _POST_MORTEM_S} | variables
    return variables | {dialect.VARIABLE: "1"} if options.rlinf else variables


def _check_together(options: Options) -> None:
    if options.help or options.version or options.print_completion is not None:
        return
    if options.hosts is not None and options.local_nodes is not None:
        raise ConfigError(
            f"--hosts {options.hosts} and --local-nodes {options.local_nodes} (or $RLINF_LOCAL_NODES) exclude "
            "each other\n  fix: keep one of the two"
        )
    if options.sweep is not None and options.script is not None:
        raise ConfigError(
            f"--sweep {options.sweep} runs no script, but {options.script!r} is named\n  fix: leave it out"
        )
    if options.force and options.sweep is None:
        raise ConfigError("--force forces nothing\n  fix: leave it out, or name the run to sweep: --sweep RUN --force")
    if options.placement_svg is not None and options.show_placement is None:
        raise ConfigError(f"--placement-svg {options.placement_svg} draws nothing\n  fix: add --show-placement")
    starts_nothing = options.sweep or options.check or options.dry_run or options.show_placement is not None
    if options.script is None and not starts_nothing:
        raise ConfigError("no script is named\n  fix: rlinf-launch [options] train.py [args ...]")


def _shell_words(text: str, flag: Flag) -> tuple[str, ...]:
    # The flag's own reader splits ssh-args, whether they come from the variable or the flag.
    if not flag.repeats or flag.name == "ssh-args":
        return (text,)
    return split_shell(FlagValue(text, f"${flag.variable}"))


def _read_argv(argv: list[str]) -> _GivenWords:
    words = _GivenWords()
    while argv:
        word = argv.pop(0)
        if word == "--":
            word = argv.pop(0) if argv else ""
        elif word.startswith("--"):
            _read_long(word, argv, words)
            continue
        elif word.startswith("-"):
            _read_short(word, argv, words)
            continue
        if word:
            words.script, words.args = word, tuple(argv)
        break
    return words


def _read_long(word: str, argv: list[str], words: _GivenWords) -> None:
    written, equals, text = word.partition("=")
    spelling = "--" + written[2:].replace("_", "-")
    flag = BY_SPELLING.get(spelling)
    if flag is None:
        raise _unknown(written, spelling)
    if equals:
        _add(words, flag, FlagValue(text, written))
    elif flag.name in _MAY_STAND_ALONE:
        is_meant = argv and _MAY_STAND_ALONE[flag.name](argv[0])
        _add(words, flag, FlagValue(argv.pop(0) if is_meant else "", written))
    elif flag.metavar:
        _add(words, flag, _next(argv, written, flag))
    else:
        _add(words, flag, FlagValue("1", written))


def _read_short(word: str, argv: list[str], words: _GivenWords) -> None:
    long = "-" + word.partition("=")[0].replace("_", "-")
    if len(long) > 3 and long in BY_SPELLING:
        raise ConfigError(f"unknown flag {word!r}\n  fix: write {long}, with two dashes")
    letters = word[1:]
    while letters:
        spelling, letters = f"-{letters[0]}", letters[1:]
        flag = BY_SPELLING.get(spelling)
        if flag is None:
            raise _unknown(word if len(word) == 2 else f"{spelling}' in '{word}", spelling)
        if not flag.metavar:
            _add(words, flag, FlagValue("1", spelling))
            continue
        text = letters.removeprefix("=")
        _add(words, flag, FlagValue(text, spelling) if letters else _next(argv, spelling, flag))
        return
    if word == "-":
        raise ConfigError("the script cannot come from stdin\n  fix: name a file; '-' goes after --hosts")


def _next(argv: list[str], written: str, flag: Flag) -> FlagValue:
    if not argv or argv[0] == "--" or argv[0].partition("=")[0] in BY_SPELLING:
        raise ConfigError(f"{written} needs a value\n  fix: write --{flag.name}={flag.metavar}")
    return FlagValue(argv.pop(0), written)


def _add(words: _GivenWords, flag: Flag, value: FlagValue) -> None:
    words.given.setdefault(flag.name, []).append(value)


def _unknown(written: str, spelling: str) -> ConfigError:
    hint = FOREIGN.get(spelling)
    fix = hint or "rlinf-launch --help lists the flags; the script's own flags go after the script"
    similar = "" if hint else suggestion(spelling, BY_SPELLING)
    return ConfigError(f"unknown flag '{written}'{similar}\n  fix: {fix}")
