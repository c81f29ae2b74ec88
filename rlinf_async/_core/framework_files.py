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
    """True if a file lies in ``rlinf_async`` or ``rlinf_launcher``, by whichever links its path leads there.

    The path may come from another process, which has imported the framework by another one than this process.
    """
    # A path such as ``<string>`` names no file, and would be looked for below a working directory that may be gone.
    return file.startswith(_FOLDERS) or (file.startswith("/") and os.path.realpath(file).startswith(_FOLDERS))
