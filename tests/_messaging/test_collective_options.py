"""Validation of NCCL settings."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async import ConfigError
from rlinf_async._messaging.collective_options import CollectiveGroupOptions


@pytest.mark.parametrize(
    "wrong",
    [
        {"accel_cluster_size": 9},
        {"accel_cluster_size": -1},
        {"accel_max_ctas": 0},
        {"accel_max_ctas": 33},
        {"accel_min_ctas": 1.5},
        {"accel_max_ctas": 2, "accel_min_ctas": 3},
    ],
)
def test_options_out_of_range_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CollectiveGroupOptions(**wrong)
    with pytest.raises(AssertionError):
        CollectiveGroupOptions(**wrong)


def test_options_know_whether_they_say_anything() -> None:
    assert CollectiveGroupOptions().is_empty_options()
    assert not CollectiveGroupOptions(accel_max_ctas=32, accel_min_ctas=32).is_empty_options()
    assert not CollectiveGroupOptions(use_ring_broadcast=True).is_empty_options()
