"""Interpreters of their own for tests: a virtual environment each, which finds what this one has installed."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path


def make_interpreter(folder: Path) -> Path:
    """Makes a virtual environment in ``folder``; its interpreter, whose ``sys.prefix`` is the folder."""
    venv.create(folder, with_pip=False, symlinks=True)
    installed = sysconfig.get_path("purelib")
    (own,) = folder.glob("lib/python3.*/site-packages")
    # As a site, and not as a mere path: what is installed for editing is found there too.
    (own / "installed.pth").write_text(f"import site; site.addsitedir({installed!r})\n")
    return folder / "bin" / "python"
