"""Files of the framework, told from those of users."""

from __future__ import annotations

from pathlib import Path

import rlinf_async._core.frames
import rlinf_launcher.daemon.router
from rlinf_async._core.framework_files import is_framework


def test_files_of_both_packages_are_the_frameworks_by_whichever_path(tmp_path: Path) -> None:
    file = rlinf_async._core.frames.__file__
    (tmp_path / "linked").symlink_to(Path(file).parent)
    assert is_framework(file)
    assert is_framework(rlinf_launcher.daemon.router.__file__)
    assert is_framework(str(tmp_path / "linked/frames.py"))
    assert not is_framework(__file__)
    assert not is_framework("<string>")
