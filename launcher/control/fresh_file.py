"""Files written atomically and readable by their owner only, because bundles and pages contain logs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def fresh_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` once it is complete.  Raises OSError naming ``path``."""
    try:
        # A random name, because another container may have the same pid, and a killed process leaves its file behind.
        fd, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with open(fd, "wb") as file:
                yield file
            Path(fresh).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(fresh).unlink()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
