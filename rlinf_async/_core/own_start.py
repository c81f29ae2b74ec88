"""The initial state of this process (environment and interpreter options), and later changes to variables.

A driver's changes are sent with each launch. A worker was forked from a template, so its initial state is the one
that its daemon sends, not the state at exec. A launch by a worker also passes on the changes that came with its own
launch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Maps each changed variable to its new value, or None if it was deleted. Environments are bytes, not always UTF-8.
Changes = Mapping[bytes, bytes | None]

# Variables that describe one process's place in a run: they are not copied to another process, and users may not set
# them for workers.
OWN: Final = frozenset((
    "RLINF_RUN_ID", "RLINF_NODE_SOCKET", "RLINF_NODE_RANK", "RLINF_WORKER", "RLINF_PARENT_SOCKET", "RLINF_LOG_DIR",
    "RLINF_RESTARTS", "RLINF_PROFILING", "RLINF_REHEARSAL",
))  # fmt: skip

_NOT_COPIED: Final = frozenset(map(os.fsencode, OWN)) | {b"RLINF_TRACE"}

# Values of LC_CTYPE that Python itself sets at startup in the C locale (PEP 538).
_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")


def _read_environment() -> dict[str, str]:
    """Return this process's initial environment, or the current one if the kernel does not show the initial one.

    ``setproctitle`` and similar libraries overwrite the memory that the kernel shows, so that every variable would seem
    to have changed.
    """
    now = dict(os.environ)
    try:
        data = Path("/proc/self/environ").read_bytes()
    except OSError:
        return now
    pairs = [entry.partition(b"=") for entry in data.removesuffix(b"\0").split(b"\0")] if data else []
    if not all(name and equals for name, equals, _ in pairs):
        return now
    # If a variable is defined several times, the first definition counts, as for getenv().
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in reversed(pairs)}
    if "LC_CTYPE" not in found and now.get("LC_CTYPE") in _COERCED:
        found["LC_CTYPE"] = now["LC_CTYPE"]
    return found


_start: tuple[Mapping[str, str], Changes] = (_read_environment(), {})


def begin(environment: Mapping[str, str], carried: Changes) -> None:
    """Reset the reference for changes; ``carried`` holds the changes that came with the launch of this process."""
    global _start
    _start = (dict(environment), carried)


def changed_variables() -> dict[bytes, bytes | None]:
    start, carried = _start
    now = dict(os.environ)
    changes = dict(carried)
    for name in sorted(start.keys() | now.keys()):
        if now.get(name) != start.get(name):
            changes[os.fsencode(name)] = os.fsencode(now[name]) if name in now else None
    return {name: value for name, value in changes.items() if name not in _NOT_COPIED}


def interpreter_flags(argv: list[str] | None = None) -> list[str]:
    """Return the options of this process's interpreter that workers also need, such as ``["-O", "-X", "dev"]``.

    The options come from the command line, not from ``sys.flags``: variables such as PYTHONDONTWRITEBYTECODE reach a
    node with the environment, and options that repeat them would require a second template. ``-S`` is omitted, because
    the template finds torch through ``site``.
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
            if letter in "cm":  # the program; later words are its own arguments
                return flags
            if letter in "WX":
                flags += [f"-{letter}", word[place:] or next(words, "")]
                break
            if letter in "bBdEIOsuv":
                flags.append(f"-{letter}")
    return flags
