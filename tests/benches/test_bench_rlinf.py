"""The RLinf bench's rows from what a program has said, by a program that only says it."""

from __future__ import annotations

import sys

import pytest

from benches import bench_rlinf

SAYS = """
import time
print("fsdp_config.amp is no longer supported")
for step in (1, 2, 3):
    time.sleep(0.05)
    print(f"| Global Step:    {step}/3 |")
time.sleep(0.05)
"""


def test_the_times_of_a_run_are_those_of_its_lines() -> None:
    told = bench_rlinf.times(([sys.executable, "-c", SAYS], {}))
    assert told["first_step"] > told["first_step_of_the_cluster"] >= 0.04
    assert told["step"] >= 0.04
    assert told["exit"] >= 0.04


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "print('Global Step: 4/3')"])
def test_a_run_that_has_not_trained_to_its_end_is_an_error(end: str) -> None:
    with pytest.raises(RuntimeError, match=r"exit code \d of "):
        bench_rlinf.times(([sys.executable, "-c", SAYS + end], {}))
