"""Modules that nodes import before they fork a group's workers: named by the user, or found in the group's pickle."""

from __future__ import annotations

import logging
import pickletools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rlinf_async._core import dialect
from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

# Number of bytes of a pickle that are scanned (within 20 ms); in a larger pickle, the class precedes the arguments.
_MOST_PICKLE_BYTES: Final = 64 * 1024

# Packages that every worker imports at startup, and ``__main__``, the script.
_EVERYWHERE: Final = frozenset(
    {*sys.stdlib_module_names, "__mp_main__", "cloudpickle", "msgpack", "numpy", "rlinf_async", "torch", "uvloop"}
)


def named_modules(preload: Any) -> tuple[str, ...]:
    """Return the modules that ``launch(preload=)`` names.

    Raises:
        TypeError: the argument is not a sequence of strings.
        ValueError: a string is not a valid module name.
    """
    if preload is None:
        return _workers_of_rlinf() if dialect.is_rlinf else ()
    if isinstance(preload, str):
        raise TypeError(f"preload= takes a list of modules' names, got {preload!r}: write preload=[{preload!r}]")
    if not isinstance(preload, Sequence) or not all(isinstance(name, str) for name in preload):
        raise TypeError(f"preload= takes a list of modules' names, such as ['vllm'], got {preload!r}")
    for name in preload:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload= has {name!r}, which cannot be a module's name; 'package.module' is one")
    return tuple(dict.fromkeys(preload))


def _workers_of_rlinf() -> tuple[str, ...]:
    """Return the modules of RLinf's workers that the script has imported; all its groups preload them together."""
    return tuple(sorted(name for name in sys.modules if name.startswith("rlinf.workers.")))


def imported_at_once(pickled: bytes) -> tuple[str, ...]:
    """Return the modules that unpickling a group's class and arguments imports, except those of every worker."""
    names = dict.fromkeys(_modules_of(pickled[:_MOST_PICKLE_BYTES]))
    return tuple(name for name in names if name and name.partition(".")[0] not in _EVERYWHERE)


def _modules_of(pickled: bytes) -> Iterator[str]:
    """Yield the modules of globals in a pickle of protocol 4 or newer, and modules that cloudpickle imports by name."""
    memo: list[Any] = []
    stack: list[Any] = [None, None]
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            name = opcode.name
            if name == "MEMOIZE":
                memo.append(stack[-1])
                continue
            if name in ("BINGET", "LONG_BINGET"):
                argument = memo[int(argument or 0)]
            if name == "STACK_GLOBAL":
                module, attribute = stack[-2:]
                yield str(module or "")
                argument = (module, attribute)
            if isinstance(argument, str) and stack[-1] == ("cloudpickle.cloudpickle", "subimport"):
                yield argument
            stack = [stack[-1], argument if isinstance(argument, str | tuple) else None]
    except (ValueError, IndexError):  # the pickle is truncated
        return


def log_refusal(facts: dict[str, Any]) -> None:
    """Log, once, that a group's workers have to import a module themselves."""
    logger.log(
        logging.WARNING if facts["asked"] else logging.INFO,
        "each worker of '%s' on node %s imports %s itself, which is not preloaded: %s",
        facts["group"], facts["node"], facts["module"], facts["reason"],
    )  # fmt: skip
