"""Import hook that provides ``rlinf.scheduler`` and the modules below it, so that RLinf's own programs run here.

Each of these modules offers all of RLinf's names, whichever RLinf module defines them: the names are unique, and
RLinf's programs import some of them from several modules. The hook is also installed in child processes: in workers and
their template because ``RLINF_RLINF`` is set, in other interpreters by the ``sitecustomize`` on ``PYTHONPATH``.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rlinf_async._core import dialect, process
from rlinf_async._core.own_logger import own_logger

ROOT: Final = "rlinf.scheduler"

# Maps each package below ``rlinf.scheduler`` to its modules.
MODULES: Final[dict[str, str]] = {
    "channel": "channel channel_worker",
    "cluster": "cluster config node utils",
    "collective": "async_work collective collective_group multi_channel_pg",
    "dynamic_scheduler": "manager scheduler_worker utils",
    "hardware": "accelerators hardware robots",
    "hardware.accelerators": "accelerator amd_gpu ascend_npu intel_gpu musa_gpu nvidia_gpu",
    "hardware.robots": "auto_config dosw1 dual_franka franka gim_arm xsquare",
    "manager": "coll_manager lock_manager manager node_manager worker_manager",
    "placement": "flexible node packed placement",
    "worker": "lock routing worker worker_group",
}

_PACKAGES: Final = {ROOT, *(f"{ROOT}.{package}" for package in MODULES)}
_NAMES: Final = _PACKAGES | {f"{ROOT}.{package}.{name}" for package, names in MODULES.items() for name in names.split()}
# Module that provides all the names; it is imported when a program first imports ``rlinf.scheduler``.
_NAMES_HERE: Final = "rlinf_async.rlinf.scheduler_names"
_STARTUP: Final = str(Path(__file__).parents[1] / "rlinf" / "startup")

logger = own_logger(__name__)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        if fullname not in _NAMES:
            raise ModuleNotFoundError(
                f"{fullname} is not among the modules of RLinf that rlinf_async answers for: "
                "docs/porting-from-rlinf.md lists what is there in its place",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname in _PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        names = importlib.import_module(_NAMES_HERE)

        def get(name: str) -> Any:
            if name.startswith("__") and name != "__all__":
                # The import system looks up such names itself.
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(names, name)

        setattr(module, "__getattr__", get)  # noqa: B010
        setattr(module, "__dir__", names.__dir__)  # noqa: B010


_finder: Final = _Finder()


def install() -> None:
    """Provide ``rlinf.scheduler`` here and in child processes; ImportError if RLinf's own was already imported."""
    if _finder in sys.meta_path:
        return
    if (imported := sys.modules.get(ROOT)) is not None:
        raise ImportError(
            f"{ROOT} was imported from {getattr(imported, '__file__', None)} already, so rlinf_async cannot stand for "
            "it; start the script by `rlinf-launch --rlinf` or `python -m rlinf_async.rlinf`",
            name=ROOT,
        )
    sys.meta_path.insert(0, _finder)
    dialect.is_rlinf = True
    os.environ.update(variables(os.environ))
    logger.info("%s is rlinf_async in this process", ROOT)


def end_quickly() -> None:
    """Make this interpreter exit without collecting reference cycles among imported objects.

    Collecting them takes a second of CPU time with RLinf's libraries. The exit function registered first runs last.
    """
    process.flush_files()  # otherwise a file in a reference cycle would never be flushed
    gc.freeze()


def install_if_wanted() -> None:
    """Install the hook if the environment asks for it, at the start of an interpreter, a worker or its template."""
    if dialect.is_wanted():
        install()


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    path = environ.get("PYTHONPATH") or _STARTUP
    if _STARTUP not in path.split(os.pathsep):
        path = f"{_STARTUP}{os.pathsep}{path}"  # an empty entry would mean the working directory
    return {dialect.VARIABLE: "1", "PYTHONPATH": path}
