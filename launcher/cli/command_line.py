"""Tokenizer of ``rlinf-launch``'s flags and environment variables: raw values by flag, and the script's words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rlinf_async.errors import ConfigError

from ..source_text import suggestion
from .flags import BY_SPELLING, FLAGS, FOREIGN, Flag

T = TypeVar("T")

# The flags whose value may be left out (it is empty then), and what the next word must be to be meant by it.
_MAY_STAND_ALONE: dict[str, Callable[[str], bool]] = {
    "sync": lambda word: Path(word).is_dir(),
    "show-placement": lambda word: word.endswith((".yaml", ".yml")),
}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Value:
    """A raw value of a flag, and its origin: ``--nnodes`` or ``$RLINF_NNODES``."""

    text: str
    where: str

    def error(self, problem: str, fix: str) -> ConfigError:
        return ConfigError(f"{self.where}: {problem}\n  fix: {fix}")


@dataclass
class ArgumentWords:
    """Every flag's values, and the script with what follows it."""

    given: dict[str, list[Value]] = field(default_factory=dict)
    script: str | None = None
    args: tuple[str, ...] = ()

    def last(self, name: str, read: Callable[[Value], T]) -> T | None:
        """The value of a flag that counts once; the last one wins."""
        values = self.given.get(name)
        return read(values[-1]) if values else None

    def each(self, name: str, read: Callable[[Value], T]) -> tuple[T, ...]:
        """All values of a flag that repeats."""
        return tuple(read(value) for value in self.given.get(name, ()))

    def count(self, name: str) -> int:
        """How often a flag without a value was given; 0 after ``--flag=no``."""
        total = 0
        for value in self.given.get(name, ()):
            times = _times(value)
            total = total + times if times else 0
        return total


def read_words(argv: Sequence[str], environ: Mapping[str, str]) -> ArgumentWords:
    """Sorts the words up to the script.  A flag on the command line puts its variable aside, unless it repeats.

    Raises:
        ConfigError: an unknown flag (with what was probably meant), a value that is missing or too much.
    """
    words = _read_argv(list(argv))
    for flag in FLAGS:
        text = environ.get(flag.variable, "") if flag.has_twin else ""
        if text and (flag.repeats or flag.name not in words.given):
            twins = [Value(each, f"${flag.variable}") for each in _shell_words(text, flag)]
            words.given[flag.name] = twins + words.given.get(flag.name, [])
    return words


def split_shell(value: Value) -> tuple[str, ...]:
    """Words as a shell reads them."""
    try:
        return tuple(shlex.split(value.text))
    except ValueError as error:
        raise value.error(f"cannot read {value.text!r}: {error}", "close the quotes") from error


def _shell_words(text: str, flag: Flag) -> tuple[str, ...]:
    # The words of ssh's own command line are split later, as they are behind the flag.
    if not flag.repeats or flag.name == "ssh-args":
        return (text,)
    return split_shell(Value(text, f"${flag.variable}"))


def _read_argv(argv: list[str]) -> ArgumentWords:
    words = ArgumentWords()
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


def _read_long(word: str, argv: list[str], words: ArgumentWords) -> None:
    written, equals, text = word.partition("=")
    spelling = "--" + written[2:].replace("_", "-")
    flag = BY_SPELLING.get(spelling)
    if flag is None:
        raise _unknown(written, spelling)
    if equals:
        _add(words, flag, Value(text, written))
    elif flag.name in _MAY_STAND_ALONE:
        is_meant = argv and _MAY_STAND_ALONE[flag.name](argv[0])
        _add(words, flag, Value(argv.pop(0) if is_meant else "", written))
    elif flag.metavar:
        _add(words, flag, _next(argv, written, flag))
    else:
        _add(words, flag, Value("1", written))


def _read_short(word: str, argv: list[str], words: ArgumentWords) -> None:
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
            _add(words, flag, Value("1", spelling))
            continue
        text = letters.removeprefix("=")
        _add(words, flag, Value(text, spelling) if letters else _next(argv, spelling, flag))
        return
    if word == "-":
        raise ConfigError("the script cannot come from stdin\n  fix: name a file; '-' goes after --hosts")


def _next(argv: list[str], written: str, flag: Flag) -> Value:
    if not argv or argv[0] == "--" or argv[0].partition("=")[0] in BY_SPELLING:
        raise ConfigError(f"{written} needs a value\n  fix: write --{flag.name}={flag.metavar}")
    return Value(argv.pop(0), written)


def _add(words: ArgumentWords, flag: Flag, value: Value) -> None:
    words.given.setdefault(flag.name, []).append(value)


def _times(value: Value) -> int:
    """0 or 1; more only where a variable asks for it, as RLINF_VERBOSE=2 does."""
    text = value.text.strip().lower()
    if text in _YES or text in _NO:
        return int(text in _YES)
    if len(text) == 1 and text.isdecimal() and value.where == "$RLINF_VERBOSE":
        return int(text)
    raise value.error(f"{value.text!r} is neither yes nor no", "write 1 or 0")


def _unknown(written: str, spelling: str) -> ConfigError:
    hint = FOREIGN.get(spelling)
    fix = hint or "rlinf-launch --help lists the flags; the script's own flags go after the script"
    near = "" if hint else suggestion(spelling, BY_SPELLING)
    return ConfigError(f"unknown flag '{written}'{near}\n  fix: {fix}")
