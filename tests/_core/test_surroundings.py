"""Surroundings that a process needs."""

from __future__ import annotations

import os

import pytest

from rlinf_async._core import surroundings
from rlinf_async.errors import LaunchError


@pytest.mark.parametrize(("user", "mask", "is_refused"), [(0, 0o700, False), (7, 0o700, True), (7, 0o077, False)])
def test_only_a_user_who_cannot_enter_its_own_folders_is_refused(
    monkeypatch: pytest.MonkeyPatch, user: int, mask: int, is_refused: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    before = os.umask(mask)
    try:
        if is_refused:
            with pytest.raises(LaunchError, match="umask 0700 this user may not enter"):
                surroundings.check()
        else:
            surroundings.check()
    finally:
        os.umask(before)
