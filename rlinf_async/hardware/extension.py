"""Loader of the user's extension module (``RLINF_EXT_MODULE``), whose ``register()`` runs once per process."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Mapping
from typing import Final

from rlinf_async._core.failures import text_of
from rlinf_async._core.own_logger import own_logger

EXTENSION: Final = "RLINF_EXT_MODULE"
"""Environment variable that names the user's extension module."""

_loaded: set[str] = set()
_loading = threading.RLock()


def load_extension(environ: Mapping[str, str]) -> str:
    """Import the module named by the variable and call its ``register()``, once per process.

    A failure is only logged as a warning, by the logger ``RLinf``, and the process continues without the module.

    Returns:
        The warning; empty if the module was loaded, or none is named.
    """
    name = environ.get(EXTENSION, "").strip()
    if not name:
        return ""
    with _loading:  # a second thread waits until everything is registered
        if name in _loaded:
            return ""
        _loaded.add(name)  # before its functions run, which may come back here
        try:
            register = getattr(importlib.import_module(name), "register", None)
            if register is None:
                raise AttributeError("it has no function register()")
            register()
        except BaseException as error:
            _loaded.discard(name)
            if not isinstance(error, Exception | SystemExit):
                raise
            problem = (
                f"the extension module {name!r} ({EXTENSION}) is not loaded: {type(error).__name__}: {text_of(error)}"
            )
            own_logger("RLinf").warning(problem)
            return problem
    return ""


def load_user_extension_module(logger: logging.Logger | None = None) -> None:
    """Call ``load_extension`` with this process's own environment, under RLinf's name."""
    load_extension(os.environ)
