"""Learning curves: interpolation at equal wall time, and reading of TensorBoard's event files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from benches.results.curves import Curve, read_curve
from benches.results.plot import band

CURVE = Curve([100, 200, 300], [10.0, 20.0, 40.0], [0.0, 5.0, 9.0])


@pytest.mark.parametrize(
    ("seconds", "expected"), [(9.9, None), (10.0, 0.0), (15.0, 2.5), (30.0, 7.0), (40.0, 9.0), (99.0, 9.0)]
)
def test_a_return_at_an_instant_lies_between_its_neighbours(seconds: float, expected: float | None) -> None:
    assert CURVE.at_seconds(seconds) == expected


@pytest.mark.parametrize("step", [1, 4096])
def test_events_count_training_steps_or_samples(tmp_path: Path, step: int) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        started = time.time()
        for index, value in enumerate((1.5, -2.25, 1234.5678), start=1):
            writer.add_scalar("rollout/return", value, index * step, walltime=started + 10 * index)
    curve = read_curve(tmp_path, "rollout/return", 3 * 4096)
    assert curve.samples == [4096, 8192, 12288]
    assert curve.seconds == pytest.approx([10, 20, 30], abs=0.5)
    assert curve.returns == [1.5, -2.25, 1234.6]


def test_a_missing_scalar_is_named_beside_those_that_are_there(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("time/step", 1.0, 1)
    with pytest.raises(ValueError, match=r"no scalar rollout/return .* only \['time/step'\]"):
        read_curve(tmp_path, "rollout/return", 4096)


def test_a_band_spans_what_all_curves_have_and_their_values_there() -> None:
    higher = Curve([150, 300], [1.0, 2.0], [10.0, 16.0])
    places, low, middle, high = band([CURVE, higher], lambda curve: curve.samples)
    assert (places[0], places[-1]) == (150, 300)
    assert (low[0], middle[0], high[0]) == (2.5, 6.25, 10.0)
    assert (low[-1], middle[-1], high[-1]) == (9.0, 12.5, 16.0)
