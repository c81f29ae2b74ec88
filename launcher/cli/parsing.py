"""Validates the values of ``rlinf-launch``'s flags and environment variables, and builds ``Options`` from them."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinf_async import settings
from rlinf_async._core import dialect
from rlinf_async._core.resource_locks import parse_port_range
from rlinf_async.errors import ConfigError

from ..options import DEFAULT_START_TIMEOUT_S, Options
from ..remote.exported_env import chosen, is_name
from ..remote.host import MAX_FAKE_GPUS
from .command_line import ArgumentWords, Value, read_words, split_shell
from .flags import GROUPS

_POST_MORTEM_S = "3600"
"""For ``--pdb``: an operator who is at lunch comes back, and a run without one ends."""

_PLACES = ("where", "the way to the hosts")
"""Groups of flags that a script hardly has itself."""

_RANKS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_RUN = re.compile(r"[0-9a-f]{8}")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*", re.ASCII)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Reads ``rlinf-launch``'s words (without its own name) and the variables that stand in for flags.

    Raises:
        ConfigError: wrong usage, naming the flag or variable, the value and the fix; exit code 2.
    """
    words = read_words(argv, environ)
    options = Options(
        script=words.script,
        args=words.args,
        module=words.count("module") > 0,
        hosts=words.last("hosts", _text),
        nnodes=words.last("nnodes", _positive),
        local_nodes=words.last("local-nodes", _positive),
        fake_gpus=words.last("fake-gpus", _gpus),
        allow_duplicate_hosts=words.count("allow-duplicate-hosts") > 0,
        iface=words.last("iface", _interface),
        python=words.last("python", _text),
        cwd=words.last("cwd", lambda value: str(_path(value))),
        sync=words.last("sync", _folder),
        env=words.each("env", _assignment),
        env_file=words.each("env-file", _path),
        export=words.each("export", _text),
        prologue=words.last("prologue", _prologue),
        launcher=words.last("launcher", _launcher) or "auto",
        port_range=words.last("port-range", _port_range),
        ssh_user=words.last("ssh-user", _user),
        ssh_port=words.last("ssh-port", _port),
        ssh_key=words.last("ssh-key", _path),
        ssh_args=sum(words.each("ssh-args", split_shell), ()),
        accept_new_host_keys=words.count("accept-new-host-keys") > 0,
        start_timeout=_start_timeout(words),
        rlinf=words.count("rlinf") > 0,
        fail_fast=words.count("fail-fast") > 0,
        pdb=words.count("pdb") > 0,
        timeout=words.last("timeout", _seconds) or None,
        log_dir=words.last("log-dir", _path),
        trace=words.last("trace", _path),
        tee=words.last("tee", _tee) or "all",
        json=words.count("json") > 0,
        verbosity=min(2, words.count("verbose")) - (words.count("quiet") > 0),
        dry_run=words.count("dry-run") > 0,
        show_placement=words.last("show-placement", lambda value: value.text),
        placement_svg=words.last("placement-svg", _path),
        check=words.count("check") > 0,
        sweep=words.last("sweep", _run),
        force=words.count("force") > 0,
        print_completion=words.last("print-completion", _text),
        version=words.count("version") > 0,
        help=words.count("help") > 0,
    )
    _check_together(options)
    return options


def flags_behind(args: Sequence[str]) -> list[str]:
    """Words of a script that say where a run is, as long flags of the launcher do: maybe meant for it."""
    where = {spelling for group in _PLACES for flag in GROUPS[group] for spelling in flag.spellings}
    words = dict.fromkeys(word.partition("=")[0] for word in args)
    return [word for word in words if word.startswith("--") and word in where]


def exported(environ: Mapping[str, str], options: Options) -> dict[str, str]:
    """The variables that every node gets, sorted by name; see `rlinf_launcher.remote.exported_env.chosen`."""
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


def _text(value: Value) -> str:
    if not value.text:
        raise value.error("the value is empty", "leave the flag out, or give it a value")
    return value.text


def _number(value: Value, low: int, high: int) -> int:
    text = value.text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise value.error(f"{value.text!r} is not a number from {low} to {high}", f"write {low} or more")
    return int(text)


def _positive(value: Value) -> int:
    return _number(value, 1, 10**6)


def _gpus(value: Value) -> int:
    return _number(value, 0, MAX_FAKE_GPUS)


def _port(value: Value) -> int:
    return _number(value, 1, 65535)


def _port_range(value: Value) -> tuple[int, int]:
    try:
        return parse_port_range(value.text)
    except ValueError as error:
        raise value.error(str(error), "write the first and the last port, as in 20000-20099") from None


def _launcher(value: Value) -> str:
    if value.text not in ("ssh", "srun", "auto"):
        raise value.error(f"{value.text!r} is no way to a host", "write ssh, srun or auto")
    return value.text


def _prologue(value: Value) -> str:
    if "\n" in value.text:
        raise value.error(
            "it has several lines", "write ';' between the commands, or put them in a file: 'source FILE'"
        )
    return _text(value)


def _start_timeout(words: ArgumentWords) -> float | None:
    seconds = words.last("start-timeout", _seconds)
    return DEFAULT_START_TIMEOUT_S if seconds is None else (seconds or None)


def _seconds(value: Value) -> float:
    try:
        seconds = float(value.text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise value.error(f"{value.text!r} is not a number of seconds", "write 60, or 0 to wait for ever")
    return seconds


def _path(value: Value) -> Path:
    """Absolute, seen from here: the same path is used on every node."""
    return Path(_text(value)).expanduser().absolute()


def _folder(value: Value) -> Path:
    if not value.text:
        return _project(value)
    folder = _path(value).resolve()
    if not folder.is_dir():
        raise value.error(f"{value.text!r} is not a folder", "name the folder that holds your code")
    return folder


def _project(value: Value) -> Path:
    """The nearest folder from here upwards that looks like a project, below the home folder; else this folder."""
    here = Path.cwd().resolve()
    too_large = {Path("/"), Path(os.environ.get("HOME", "/")).resolve()}
    if here in too_large:
        raise value.error(f"all of {here} would be shipped", "go to the folder of your code, or name it: --sync=DIR")
    below = itertools.takewhile(lambda folder: folder not in too_large, (here, *here.parents))
    return next((each for each in below if (each / "pyproject.toml").exists() or (each / ".git").exists()), here)


def _user(value: Value) -> str:
    if not _USER.fullmatch(value.text):
        raise value.error(f"{value.text!r} is not a user name", "write a name without '@' and blanks")
    return value.text


def _interface(value: Value) -> str:
    if not value.text or "/" in value.text or value.text.split() != [value.text]:
        raise value.error(f"{value.text!r} is not an interface", "write a name that `ip link` lists, as eth0")
    return value.text


def _run(value: Value) -> str:
    if not _RUN.fullmatch(value.text):
        raise value.error(
            f"{value.text!r} is not a run's id", "write the id, 8 of 0-9 and a-f, that follows 'run' in its first line"
        )
    return value.text


def _assignment(value: Value) -> tuple[str, str | None]:
    name, equals, text = value.text.partition("=")
    if not is_name(name):
        raise value.error(f"{name!r} cannot name a variable", "write -e NAME=value, or -e NAME to copy it")
    return name, text if equals else None


def _tee(value: Value) -> str:
    if value.text in ("all", "none"):
        return value.text
    ranks: set[int] = set()
    for part in value.text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise value.error(f"{part!r} is not a rank", "write all, none, or ranks: 0,3 or 0-3")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return ",".join(map(str, sorted(ranks)))
