"""Runs at the start of each interpreter of an RLinf program: installs the import hook, and runs the next
sitecustomize."""

import atexit
import contextlib
import importlib.machinery
import importlib.util
import os.path
import sys
from pathlib import Path

with contextlib.suppress(ImportError):  # without the framework, this interpreter must start as usual
    from rlinf_async._core import import_hook

    import_hook.install_if_wanted()
    atexit.register(import_hook.end_quickly)

_here = Path(__file__).resolve().parent
_others = [entry for entry in sys.path if os.path.realpath(entry) != str(_here)]  # Path.resolve may raise
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    sys.modules["sitecustomize"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["sitecustomize"])
