"""Errors raised from a sync report, and its text."""

from __future__ import annotations

import pytest

from rlinf_async.errors import DeadlineExceeded, PeerLost, WeightMismatch
from rlinf_async.weights.state.sync_report import Ack, SyncReport


class Peculiar(Exception):
    """It cannot be made again by what its text was made of."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")
        self.number = number


def raised(error: BaseException, version: int) -> BaseException:
    with pytest.raises(type(error)) as caught:
        SyncReport(version, {1: Ack("failed", version, error)}).raise_failures()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        PeerLost("gone"),
        DeadlineExceeded("late"),
        WeightMismatch("w"),
        Peculiar("w", 3),
        FileNotFoundError(2, "no", "f"),
    ],
)
def test_every_raise_has_an_error_of_its_own_that_names_its_version(error: BaseException) -> None:
    error.add_note("said elsewhere")
    cause = error.__cause__ = ValueError("why")
    found = [raised(error, version) for version in (3, 4)]
    text = f"{type(error).__name__}: {error}"
    for version, each in zip((3, 4), found, strict=True):
        assert each.__notes__ == ["said elsewhere", f"worker 1 does not have version {version}: {text}"]
        assert (str(each), each.args, each.__cause__) == (str(error), error.args, cause)
        assert getattr(each, "number", None) == getattr(error, "number", None)
    assert error.__notes__ == ["said elsewhere"]
    assert len({id(error), *map(id, found)}) == 3


def test_a_report_reads_as_a_sentence() -> None:
    had, lost = Ack("applied", 3), Ack("failed", 3, PeerLost("worker rollout:2 has ended"))
    whole = SyncReport(3, {"rollout:0": had, "rollout:1": had}, 1_300_000, t_stage=0.0004, t_total=0.0041)  # type: ignore[dict-item]
    assert str(whole) == (
        "version 3, 1.2 MiB: rollout:0, rollout:1 have it, after 4.1 ms, of which staging took 0.4 ms"
    )
    assert str(SyncReport(3, {0: had, 2: lost}, 312)) == (
        "version 3, 312 B: 0 has it, after 0.0 ms, of which staging took 0.0 ms; "
        "2 lacks it: PeerLost: worker rollout:2 has ended"
    )
    assert str(SyncReport(1)).startswith("version 1, 0 B: nobody has it")
    assert str(SyncReport(1, is_known=False)) == "version 1: rank 0 sends it, and knows who has it"
    many = str(SyncReport(1, dict.fromkeys(range(11), had), 5 << 30))
    assert many.startswith("version 1, 5.0 GiB: 0, 1, 2, 3, 4, 5, 6, 7 and 3 more have it")
