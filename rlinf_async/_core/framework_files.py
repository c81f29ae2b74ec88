"""Files of this framework, told from those of users: stacks have paths only, and those may lead through links."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

_HOME: Final = Path(__file__).resolve().parents[2]
# Beside an installed framework, ``launcher`` would be somebody else's package.
_LAUNCHER: Final = "rlinf_launcher" if (_HOME / "rlinf_launcher").is_dir() else "launcher"
_FOLDERS: Final = (f"{_HOME}/rlinf_async/", f"{_HOME}/{_LAUNCHER}/")


@lru_cache(4096)
def is_framework(file: str) -> bool:
    """True if a file lies in ``rlinf_async`` or ``rlinf_launcher``, whatever links its path goes through.

    The path may come from another process, which may have imported the framework by another path.
    """
    # A path such as ``<string>`` names no file: realpath would resolve it below the working directory, which may be
    # gone.
    return file.startswith(_FOLDERS) or (file.startswith("/") and os.path.realpath(file).startswith(_FOLDERS))
