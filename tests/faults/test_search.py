"""Random programs of calls, messages, channels and faults break no promise."""

from __future__ import annotations

import os
import time

import pytest

from tests.faults.search import Search
from tests.faults.stage import Stage, seconds_of


def search_for(seconds: float, seed: int) -> None:
    """Fails with the shortest program that breaks a promise."""
    seed = int(os.environ.get("RLINF_FAULTS_SEED", "") or seed)
    with Stage() as stage:
        began = time.monotonic()
        search = Search(stage, until=began + seconds)
        found = search.go(seed)
        spent = time.monotonic() - began
    print(f"\n{search.played} programs in {spent:.0f} s, seed {seed}")
    if found is not None:
        pytest.fail(f"seed {seed}, after {search.seconds:.0f} s:\n{found}", pytrace=False)


def test_random_programs_break_no_promise() -> None:
    search_for(5, seed=1)


@pytest.mark.faults
def test_that_holds_for_longer() -> None:
    search_for(seconds_of("RLINF_FAULTS_SECONDS", 600), seed=time.time_ns() % 1_000_000)
