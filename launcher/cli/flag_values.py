"""Parsers for the values of flags and environment variables; each error states the source, the value and the fix."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlinf_async._core.resource_locks import parse_port_range
from rlinf_async.configuration.ranks import MAX_LOCAL_NODES
from rlinf_async.errors import ConfigError

from ..remote.exported_env import is_name
from ..remote.host import MAX_FAKE_GPUS

_RANKS: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_RUN: Final = re.compile(r"[0-9a-f]{8}")
_USER: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*", re.ASCII)
_MAX_SECONDS: Final = 1e9  # select() takes no more than about ten times as much
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


@dataclass(frozen=True)
class FlagValue:
    """A flag's raw value and its origin, such as ``--nnodes`` or ``$RLINF_NNODES``."""

    text: str
    where: str

    def error(self, problem: str, fix: str) -> ConfigError:
        return ConfigError(f"{self.where}: {problem}\n  fix: {fix}")


def text_or_nothing(value: FlagValue) -> str:
    return value.text


def text(value: FlagValue) -> str:
    if not value.text:
        raise value.error("the value is empty", "leave the flag out, or give it a value")
    return value.text


def _number(value: FlagValue, low: int, high: int) -> int:
    text = value.text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise value.error(f"{value.text!r} is not a number from {low} to {high}", f"write {low} or more")
    return int(text)


def positive(value: FlagValue) -> int:
    return _number(value, 1, 10**6)


def local_nodes(value: FlagValue) -> int:
    return _number(value, 1, MAX_LOCAL_NODES)


def gpus(value: FlagValue) -> int:
    return _number(value, 0, MAX_FAKE_GPUS)


def port(value: FlagValue) -> int:
    return _number(value, 1, 65535)


def port_range(value: FlagValue) -> tuple[int, int]:
    try:
        return parse_port_range(value.text)
    except ValueError as error:
        raise value.error(str(error), "write the first and the last port, as in 20000-20099") from None


def launcher(value: FlagValue) -> str:
    if value.text not in ("ssh", "srun", "auto"):
        raise value.error(f"{value.text!r} is no way to a host", "write ssh, srun or auto")
    return value.text


def prologue(value: FlagValue) -> str:
    if "\n" in value.text:
        raise value.error(
            "it has several lines", "write ';' between the commands, or put them in a file: 'source FILE'"
        )
    return text(value)


def seconds(value: FlagValue) -> float:
    try:
        seconds = float(value.text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MAX_SECONDS:
        problem = f"{value.text!r} is not a number of seconds up to {_MAX_SECONDS:.0e}"
        raise value.error(problem, "write 60, or 0 to wait for ever")
    return seconds


def timeout(value: FlagValue) -> float | None:
    return seconds(value) or None


def path(value: FlagValue) -> Path:
    """Return an absolute path, resolved against this machine's working directory; nodes use the same path."""
    try:
        return Path(text(value)).expanduser().absolute()
    except (OSError, RuntimeError) as error:  # the working directory was removed, or a user's home is not known
        raise value.error(f"{value.text!r} cannot be made absolute: {error}", "write an absolute path") from error


def path_text(value: FlagValue) -> str:
    return str(path(value))


def folder(value: FlagValue) -> Path:
    if not value.text:
        return _project(value)
    folder = _resolved(path(value))
    if not os.path.isdir(folder):
        raise value.error(f"{value.text!r} is not a folder", "name the folder that holds your code")
    return folder


def _project(value: FlagValue) -> Path:
    """Return the nearest project folder, from this folder upwards but below the home folder; else this folder."""
    folder = _resolved(path(FlagValue(".", value.where)))
    too_large = {Path("/"), _resolved(Path(os.environ.get("HOME", "/")))}
    if folder in too_large:
        raise value.error(f"all of {folder} would be shipped", "go to the folder of your code, or name it: --sync=DIR")
    below = itertools.takewhile(lambda folder: folder not in too_large, (folder, *folder.parents))
    names = ("pyproject.toml", ".git")
    return next((each for each in below if any(os.path.exists(each / name) for name in names)), folder)


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises for a link that leads to itself


def user(value: FlagValue) -> str:
    if not _USER.fullmatch(value.text):
        raise value.error(f"{value.text!r} is not a user name", "write a name without '@' and blanks")
    return value.text


def interface(value: FlagValue) -> str:
    if not value.text or "/" in value.text or value.text.split() != [value.text]:
        raise value.error(f"{value.text!r} is not an interface", "write a name that `ip link` lists, as eth0")
    return value.text


def run_id(value: FlagValue) -> str:
    if not _RUN.fullmatch(value.text):
        raise value.error(
            f"{value.text!r} is not a run's id", "write the id, 8 of 0-9 and a-f, that follows 'run' in its first line"
        )
    return value.text


def assignment(value: FlagValue) -> tuple[str, str | None]:
    name, equals, text = value.text.partition("=")
    if not is_name(name):
        raise value.error(f"{name!r} cannot name a variable", "write -e NAME=value, or -e NAME to copy it")
    return name, text if equals else None


def tee(value: FlagValue) -> str:
    if value.text in ("all", "none"):
        return value.text
    ranks: set[int] = set()
    for part in value.text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise value.error(f"{part!r} is not a rank", "write all, none, or ranks: 0,3 or 0-3")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return ",".join(map(str, sorted(ranks)))


def split_shell(value: FlagValue) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value.text))
    except ValueError as error:
        raise value.error(f"cannot read {value.text!r}: {error}", "close the quotes") from error


def times(value: FlagValue) -> int:
    """Return 0 or 1 for a flag without a value; ``$RLINF_VERBOSE`` may be a larger digit."""
    text = value.text.strip().lower()
    if text in _YES or text in _NO:
        return int(text in _YES)
    if len(text) == 1 and text.isdecimal() and value.where == "$RLINF_VERBOSE":
        return int(text)
    raise value.error(f"{value.text!r} is neither yes nor no", "write 1 or 0")
