"""Errors raised from a sync report."""

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
