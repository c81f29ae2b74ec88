"""A worker's ``__main__``: definitions that arrive by value from the driver's script, and the script itself once it has
been imported.

Classes and functions of the script travel by value. Code in a worker that pickles by reference (``pickle``,
``torch.save``, a ``multiprocessing.Queue``) looks up their names in ``__main__``, where ``register`` puts them. A name
that has not arrived is taken from the script. For this, the script is imported once, under the name ``__mp_main__``, as
multiprocessing does, so that its ``if __name__ == "__main__":`` is false. A script that has no such guard, or is not a
file on this node, is never imported, because the import would repeat the script's actions.

The module also has the script's ``__file__`` and ``__spec__``, so that spawned children of the worker can import it.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from rlinf_async._core import process
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.unpicklable import summary

logger = own_logger(__name__)

MAIN_NAMES: Final = ("__main__", "__mp_main__")

_NOT_FOUND: Final = re.compile(r"Can't get attribute '([^']+)' on <module '__(?:mp_)?main__'")


class MainModule(ModuleType):
    """The ``__main__`` module of a worker."""

    def __getattr__(self, name: str) -> Any:
        # Libraries look for __file__, __spec__ and the like in __main__: such a lookup must not import the script.
        if not (name.startswith("__") and name.endswith("__")) and (module := script.load()) is not None:
            return getattr(module, name)
        raise AttributeError(f"module '__main__' has no attribute {name!r}")


class Script:
    """The program that ``__main__`` represents: its file, if any, and the module name if started by ``python -m``."""

    def __init__(self, path: str | None, name: str | None = None) -> None:
        self.path = path
        self.module: ModuleType | None = None
        self.failure = ""  # reason why the script cannot be imported here; empty before an attempt
        # Functions to which the worker's own class refers; later copies do not replace them.
        self.pinned: frozenset[str] = frozenset()
        self._name = name
        self._lock = threading.RLock()

    def describe(self, module: ModuleType) -> None:
        if self.path is None or not os.path.isfile(self.path):
            return
        module.__file__ = self.path
        if self._name is not None:
            module.__spec__ = ModuleSpec(self._name, None, origin=self.path)
            module.__package__ = self._name.rpartition(".")[0]

    def load(self) -> ModuleType | None:
        """Return the script, imported as ``__mp_main__``; None if that fails, with the reason in ``failure``."""
        with self._lock:
            # _import sets self.module before the code runs, so that lookups by the script itself find the names defined
            # so far.
            if self.module is None and not self.failure:
                self.failure = self.why_not()
                if not self.failure:
                    self._import()
                if self.failure:
                    # Pickle swallows the text of a failed lookup, so log it.
                    logger.warning("names of the script that have not arrived are unknown here: %s", self.failure)
            return self.module

    def why_not(self) -> str:
        """Return why the script's file must not be imported; empty if it may be."""
        if self.path is None:
            return "the script is no file (standard input, -c or a notebook), so that nothing can be imported from it"
        if not os.path.isfile(self.path):
            return f"there is no file {self.path} on this node to import it from"
        if not _has_guard(Path(self.path).read_bytes()):
            return f'{self.path} cannot be imported: put what it does below `if __name__ == "__main__":`'
        return ""

    def forget_lock(self) -> None:
        """Replace the lock in a forked child, because the thread that held it may not exist there."""
        self._lock = threading.RLock()

    def _import(self) -> None:
        assert self.path is not None
        main = sys.modules["__main__"]
        arrived = {name: value for name, value in vars(main).items() if not name.startswith("__")}
        self.module = sys.modules["__mp_main__"] = ModuleType("__mp_main__")
        self.describe(self.module)
        process.imports_script.here = True
        try:
            exec(compile(Path(self.path).read_bytes(), self.path, "exec", dont_inherit=True), vars(self.module))
        except KeyboardInterrupt:
            self._rollback(main)
            raise
        except BaseException as error:  # includes SystemExit, which argument parsers raise
            self._rollback(main)
            self.failure = f"importing {self.path} has failed ({summary(error)})"
        else:
            # A class must be a single object, so the imported functions use the class objects that arrived by value.
            vars(self.module).update((name, value) for name, value in arrived.items() if name in vars(self.module))
        finally:
            process.imports_script.here = False

    def _rollback(self, main: ModuleType) -> None:
        self.module, sys.modules["__mp_main__"] = None, main


# The script of this process. In a driver it has no path, because ``__main__`` is the script itself.
script = Script(None)

os.register_at_fork(after_in_child=lambda: script.forget_lock())


def renew(path: str | None, name: str | None = None) -> None:
    """Replace the template's ``__main__`` with one for the script: its file, and its module if run by ``python -m``."""
    global script
    script = Script(path, name)
    module = MainModule("__main__")
    script.describe(module)
    if path is not None:
        sys.argv = [path]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def pin() -> None:
    """Protect the functions that have arrived so far from later copies; the worker's class refers to them by name."""
    main = sys.modules["__main__"]
    script.pinned = frozenset(name for name, value in vars(main).items() if isinstance(value, FunctionType))


def register(definition: Any) -> None:
    """Put a class or function that arrived by value into a worker's ``__main__``; do nothing in other processes."""
    main = sys.modules["__main__"]
    if type(main) is not MainModule:
        return
    name = definition.__qualname__
    if definition.__module__ == "__mp_main__":
        # A spawned child imports the script under this name, and its __main__ is the same module.
        definition.__module__ = "__main__"
    if isinstance(definition, FunctionType) and name in script.pinned:
        return
    vars(main)[name] = definition
    if script.module is not None and name in vars(script.module):
        vars(script.module)[name] = definition


def keep(names: dict[str, Any]) -> None:
    """Add undefined names, to which annotations of an arrived class refer, to a worker's ``__main__``."""
    main = sys.modules["__main__"]
    if type(main) is MainModule:
        for name, value in names.items():
            vars(main).setdefault(name, value)


def own(name: str) -> Any:
    """Return the object with a dotted name in this process's script, or None; imports nothing."""
    first, *others = name.split(".")
    found = vars(sys.modules["__main__"]).get(first)
    if found is None and script.module is not None:
        found = vars(script.module).get(first)
    for part in others:
        found = getattr(found, "__dict__", {}).get(part)
    return found


def imported_space() -> dict[str, Any] | None:
    """Return the globals of the script if this process has imported it, else None."""
    return None if script.module is None else vars(script.module)


def resolve(name: str) -> Any:
    """Return the script's object that was sent by name; raise AttributeError if this process lacks it."""
    main = sys.modules["__main__"]
    try:
        return getattr(main, name)
    except AttributeError:
        raise AttributeError(f"Can't get attribute {name!r} on {main!r}") from None


def why_not() -> str:
    """Return why other processes cannot import the script of this process; empty if they can."""
    main = sys.modules["__main__"]
    return (script if type(main) is MainModule else Script(getattr(main, "__file__", None))).why_not()


def explain(error: BaseException) -> str | None:
    """Return why a name of the script is unknown here; None if the error has another cause."""
    found = _NOT_FOUND.match(str(error))
    if found is None:
        return None
    why = script.failure or f"{getattr(sys.modules['__main__'], '__file__', 'the program here')} does not define it"
    return f"{found[1]!r} of the script, which travels by its name, is not known on this side: {why}"


def _has_guard(source: bytes) -> bool:
    """True if an ``if`` statement at the top level tests ``__name__``."""
    names = (node for each in ast.parse(source).body if isinstance(each, ast.If) for node in ast.walk(each.test))
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in names)
