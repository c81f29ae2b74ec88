"""This process's start: its environment and its interpreter's options, and the variables that it has changed since.

A driver's changes travel with each launch.  A worker's start is its daemon's description of it, not its exec: it was
forked from a template.  A launch from a worker carries the changes of the launch that made it too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

Changes = Mapping[bytes, bytes | None]
"""Variables with their new values, None for a deleted one.  Environments are bytes, which need not be UTF-8."""

_OWN: Final = frozenset(
    b"RLINF_" + name
    for name in (b"RUN_ID", b"NODE_SOCKET", b"NODE_RANK", b"TRACE", b"WORKER", b"PARENT_SOCKET", b"LOG_DIR")
)
"""Variables by which the framework tells a process its place: no other process has the same."""

_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")
"""Values that Python itself gives to LC_CTYPE at its start in the C locale (PEP 538)."""


def _read_environment() -> dict[str, str]:
    """Return the environment that this process was started with, else, where the kernel does not tell, the present one.

    ``setproctitle`` and its like write over the memory that the kernel shows.  Everything would pass for a change then.
    """
    now = dict(os.environ)
    try:
        data = Path("/proc/self/environ").read_bytes()
    except OSError:
        return now
    pairs = [entry.partition(b"=") for entry in data.removesuffix(b"\0").split(b"\0")] if data else []
    if not all(name and equals for name, equals, _ in pairs):
        return now
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in reversed(pairs)}  # the first one counts
    if "LC_CTYPE" not in found and now.get("LC_CTYPE") in _COERCED:
        found["LC_CTYPE"] = now["LC_CTYPE"]
    return found


_start: tuple[Mapping[str, str], Changes] = (_read_environment(), {})


def begin(environment: Mapping[str, str], carried: Changes) -> None:
    """Start counting changes anew.

    Args:
        environment: variables of this process as it starts.
        carried: changes of the launch that this process comes from.
    """
    global _start
    _start = (dict(environment), carried)


def changed_variables() -> dict[bytes, bytes | None]:
    """Return the variables that this process has set, changed or deleted since its start."""
    start, carried = _start
    now = dict(os.environ)
    changes = dict(carried)
    for name in sorted(start.keys() | now.keys()):
        if now.get(name) != start.get(name):
            changes[os.fsencode(name)] = os.fsencode(now[name]) if name in now else None
    return {name: value for name, value in changes.items() if name not in _OWN}


def interpreter_flags(argv: list[str] | None = None) -> list[str]:
    """Return the options of this process's interpreter that hold for workers too: ``["-O", "-X", "dev"]``.

    Options, not ``sys.flags``: variables such as PYTHONDONTWRITEBYTECODE reach a node with its environment, and flags
    that repeat them would ask for a second template.  ``-S`` is left out, because the template finds torch by ``site``.

    Args:
        argv: a command line; by default this process's own.
    """
    words = iter((sys.orig_argv if argv is None else argv)[1:])
    flags: list[str] = []
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):  # --check-hash-based-pycs MODE
            flags += [word, next(words, "")]
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":  # the program; its own arguments follow
                return flags
            if letter in "WX":
                flags += [f"-{letter}", word[place:] or next(words, "")]
                break
            if letter in "bBdEIOsuv":
                flags.append(f"-{letter}")
    return flags
