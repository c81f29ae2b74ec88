"""Start of this process: environment, interpreter options, and variables changed since.

A driver's changes travel with each launch.  A worker was forked from a template, so its start is its daemon's
description of it, not its exec.  A launch from a worker also carries the changes of the launch that made the worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Variables with their new values, None for a deleted one. Environments are bytes, which need not be UTF-8.
Changes = Mapping[bytes, bytes | None]

# Variables that describe a process's own place in a run, and must not be copied to another process.
_OWN: Final = frozenset(
    b"RLINF_" + name
    for name in (b"RUN_ID", b"NODE_SOCKET", b"NODE_RANK", b"TRACE", b"WORKER", b"PARENT_SOCKET", b"LOG_DIR")
)

# Values of LC_CTYPE that Python itself sets at its start in the C locale (PEP 538).
_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")


def _read_environment() -> dict[str, str]:
    """Return the environment this process was started with; the present one if the kernel does not show it.

    ``setproctitle`` and similar libraries overwrite the memory that the kernel shows.  Against that memory every
    variable would look changed.
    """
    now = dict(os.environ)
    try:
        data = Path("/proc/self/environ").read_bytes()
    except OSError:
        return now
    pairs = [entry.partition(b"=") for entry in data.removesuffix(b"\0").split(b"\0")] if data else []
    if not all(name and equals for name, equals, _ in pairs):
        return now
    # The first of several definitions of a variable counts, as for getenv().
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in reversed(pairs)}
    if "LC_CTYPE" not in found and now.get("LC_CTYPE") in _COERCED:
        found["LC_CTYPE"] = now["LC_CTYPE"]
    return found


_start: tuple[Mapping[str, str], Changes] = (_read_environment(), {})


def begin(environment: Mapping[str, str], carried: Changes) -> None:
    """Reset the reference for changes; ``carried`` are those that came with the launch of this process."""
    global _start
    _start = (dict(environment), carried)


def changed_variables() -> dict[bytes, bytes | None]:
    start, carried = _start
    now = dict(os.environ)
    changes = dict(carried)
    for name in sorted(start.keys() | now.keys()):
        if now.get(name) != start.get(name):
            changes[os.fsencode(name)] = os.fsencode(now[name]) if name in now else None
    return {name: value for name, value in changes.items() if name not in _OWN}


def interpreter_flags(argv: list[str] | None = None) -> list[str]:
    """Return the options of this process's interpreter that workers need too: ``["-O", "-X", "dev"]``.

    The source is the command line, not ``sys.flags``: variables such as PYTHONDONTWRITEBYTECODE reach a node with its
    environment, and flags that repeat them would require a second template.  ``-S`` is omitted, because the template
    finds torch through ``site``.
    """
    words = iter((sys.orig_argv if argv is None else argv)[1:])
    flags: list[str] = []
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):  # an option such as --check-hash-based-pycs MODE
            flags += [word, next(words, "")]
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":  # the program; the words behind it are its own arguments
                return flags
            if letter in "WX":
                flags += [f"-{letter}", word[place:] or next(words, "")]
                break
            if letter in "bBdEIOsuv":
                flags.append(f"-{letter}")
    return flags
