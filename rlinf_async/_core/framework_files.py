"""Distinguishes the framework's files from users' files by their paths in stacks, which may lead through links."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

_HOME: Final = Path(__file__).resolve().parents[2]
# A module ``launcher`` next to an installed framework would be another package.
_LAUNCHER: Final = "rlinf_launcher" if (_HOME / "rlinf_launcher").is_dir() else "launcher"
_FOLDERS: Final = (f"{_HOME}/rlinf_async/", f"{_HOME}/{_LAUNCHER}/")


@lru_cache(4096)
def is_framework(file: str) -> bool:
    """True if a file belongs to ``rlinf_async`` or ``rlinf_launcher``, even if its path leads through links.

    The path may come from another process, which may have imported the framework by another path.
    """
    # A path such as ``<string>`` names no file: realpath would resolve it relative to the working directory, which may
    # no longer exist.
    return file.startswith(_FOLDERS) or (file.startswith("/") and os.path.realpath(file).startswith(_FOLDERS))
