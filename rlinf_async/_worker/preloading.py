"""Imports modules before workers are forked, and detects imports that workers must not inherit.

A worker must find the same state as if it had imported the module itself. An import is refused if a fork would lose or
share one of its effects: a thread, an open descriptor, a child process, a signal handler, the state of a random
generator, or a value that differs between workers. Its changes to ``os.environ`` are recorded, because each worker sets
up its environment again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import resource
import signal
import stat
import sys
import sysconfig
import threading
import time
from collections.abc import Collection, ItemsView, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# Major numbers of stateless devices: the kernel's memory devices (null, zero, urandom, ...) and terminals.
_HARMLESS_MAJORS: Final = frozenset({1, 5, *range(136, 144)})

_ITEMS: Final = ItemsView.__iter__.__code__  # implemented in Python, not in C

# Seconds to wait for a joined thread to disappear from the kernel's list, which happens shortly after the join.
_THREAD_END_S: Final = 0.1


class RefusedError(Exception):
    """Raised for a module whose import workers must not inherit.

    Attributes:
        module: name of the module.
        is_missing: true if the module does not exist.
    """

    def __init__(self, module: str, reason: str, is_missing: bool = False) -> None:
        super().__init__(reason)
        self.module = module
        self.is_missing = is_missing


@dataclass
class Imported:
    """The effects of the imports in one process.

    Attributes:
        variables: maps each variable of ``os.environ`` that the imports changed to its value, or to None if deleted.
        files: maps the path of each imported file outside the interpreter's own folders to its modification time and
            size.
    """

    variables: dict[str, str | None] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)

    def changed_files(self) -> list[str]:
        return [path for path, mark in self.files.items() if _mark(path) != mark]


def import_module(name: str, own_variables: Collection[str], into: Imported) -> None:
    """Import a module if it is not imported yet.

    Args:
        own_variables: environment variables whose values differ from worker to worker.
        into: record to add the import's effects to.

    Raises:
        RefusedError: workers must not inherit the import, and this process must exit.
    """
    if name in sys.modules:
        return
    modules, variables, state, descriptors = set(sys.modules), dict(os.environ), _state(), _descriptors()
    pid = os.getpid()
    with _seen_reads() as reads:
        try:
            importlib.import_module(name)
        except BaseException as error:  # SystemExit included
            missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
            text = f"its import raises {type(error).__name__}: {str(error)[:400]}"
            raise RefusedError(name, text, missing) from error
        finally:
            if os.getpid() != pid:
                os._exit(0)  # this is a child forked by the import: two processes would serve the daemon
    if own := sorted(reads.intersection(own_variables)):
        raise RefusedError(name, f"its import reads ${own[0]}, which each worker has for itself")
    if reason := _left_behind(descriptors) or _differs(state):
        raise RefusedError(name, reason)
    for variable in variables.keys() | os.environ.keys():
        if variables.get(variable) != os.environ.get(variable):
            into.variables[variable] = os.environ.get(variable)
    into.files |= _files_of(sys.modules.keys() - modules)


@contextlib.contextmanager
def _seen_reads() -> Iterator[set[str]]:
    """Context manager: collects the names of the variables that Python code reads from ``os.environ``.

    A loop over ``os.environ.items()`` does not count: libraries such as networkx search it for their own variables.
    """
    reads: set[str] = set()
    environment: Any = type(os.environ)
    given = environment.__getitem__

    def read(self: Any, name: Any) -> Any:
        if sys._getframe(1).f_code is not _ITEMS:
            with contextlib.suppress(TypeError):
                reads.add(os.fsdecode(name))
        return given(self, name)

    environment.__getitem__ = read
    try:
        yield reads
    finally:
        environment.__getitem__ = given


def thread_names() -> list[str]:
    names = []
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just exited
            names.append((entry / "comm").read_text(errors="replace").strip())
    return names


def _other_threads() -> list[str]:
    until = time.monotonic() + _THREAD_END_S
    while len(threads := thread_names()) > 1:
        if time.monotonic() > until:
            return [each.name for each in threading.enumerate() if each is not threading.main_thread()] or threads[1:]
        os.sched_yield()
    return []


def _left_behind(descriptors: Collection[tuple[int, int]]) -> str:
    if threads := _other_threads():
        return f"its import starts {len(threads)} thread{'s' * (len(threads) > 1)} ({', '.join(threads)})"
    for fd, _ in sorted(_descriptors() - set(descriptors)):
        return f"its import leaves {Path(f'/proc/self/fd/{fd}').readlink()} open"
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "its import leaves a child process" + (f" (pid {ended.si_pid}), which has ended" if ended else "")
    return ""


def _descriptors() -> set[tuple[int, int]]:
    """Return open descriptors with their inodes, except those of stateless devices."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
            status = os.fstat(int(entry.name))
            is_harmless = stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in _HARMLESS_MAJORS
            if not is_harmless:
                found.add((int(entry.name), status.st_ino))
    return found


def _state() -> dict[str, Any]:
    """Return the state that an import must not change, such as random generators; the keys describe each part."""
    import numpy as np
    import torch

    numpy_state: Any = np.random.get_state()
    handlers = {f"the handler of signal {number}": signal.getsignal(number) for number in signal.valid_signals()}
    return handlers | {
        "the state of random": random.getstate(),
        "the state of numpy.random": (numpy_state[1].tobytes(), *numpy_state[2:]),
        "the state of torch's generator": torch.get_rng_state().numpy().tobytes(),
        "torch's number of threads": torch.get_num_threads(),
        "the limit of open files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "CUDA's initialisation": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]  # torch's
    }


def _differs(state: dict[str, Any]) -> str:
    changed = [name for name, value in _state().items() if value != state[name]]
    return f"its import changes {changed[0]}" if changed else ""


def _files_of(modules: Collection[str]) -> dict[str, tuple[int, int]]:
    paths = sysconfig.get_paths()
    installed = tuple(f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    # getattr would make a lazy module import its target.
    files = {getattr(sys.modules.get(name), "__dict__", {}).get("__file__") for name in modules}
    own = [file for file in files if isinstance(file, str) and not file.startswith(installed)]
    return {file: mark for file in own if (mark := _mark(file)) is not None}


def _mark(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
