"""``Orphans``, without a launcher."""

from __future__ import annotations

import os
import subprocess

import pytest

from rlinf_launcher import orphans


@pytest.mark.parametrize("dies", [True, False])
def test_an_orphan_that_does_not_die_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    monkeypatch.setattr(orphans, "_KILL_TIMEOUT_S", 10.0 if dies else 0.1)
    adopted = orphans.Orphans("cafecafe")
    process = subprocess.Popen(["/bin/cat"], env={"RLINF_RUN_ID": "cafecafe"}, stdin=subprocess.PIPE)
    with monkeypatch.context() as patch:
        if not dies:
            patch.setattr(os, "kill", lambda pid, number: None)  # as of a process that hangs in the kernel
        adopted.end()
    assert (process.poll() is None) != dies
    process.communicate()
