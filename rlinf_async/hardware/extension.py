"""Loads the user's extension module (``RLINF_EXT_MODULE``) and calls its ``register()``, once per process."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from typing import Final

from rlinf_async._core.own_logger import own_logger

EXTENSION: Final = "RLINF_EXT_MODULE"
"""The variable that names the module with hardware of the user's own."""

_loaded: set[str] = set()


def load_extension(environ: Mapping[str, str]) -> str:
    """Imports the module that the variable names and calls its ``register()``, once in a process.

    What goes wrong in it is a warning, in the log of the name ``RLinf``, and the process goes on without it.

    Returns:
        That warning; empty where there is none.
    """
    name = environ.get(EXTENSION, "").strip()
    if not name or name in _loaded:
        return ""
    try:
        register = getattr(importlib.import_module(name), "register", None)
        if register is None:
            raise AttributeError("it has no function register()")
        register()
    except (Exception, SystemExit) as error:
        problem = f"the extension module {name!r} ({EXTENSION}) is not loaded: {type(error).__name__}: {error}"
        own_logger("RLinf").warning(problem)
        return problem
    _loaded.add(name)
    return ""


def load_user_extension_module(logger: logging.Logger | None = None) -> None:
    """Load the module that ``RLINF_EXT_MODULE`` names, as ``load_extension`` does; RLinf's name for it."""
    load_extension(os.environ)
