"""Conformance claims: tensors and graphs that outlive a version, and receivers that outlive their sender."""

from __future__ import annotations

from tests.weights.contract.claims import Make, Way, claim
from tests.weights.ends import Tied


def _maps(way: Way) -> bool:
    return way.apply == "map" and way.kind in ("multiprocess", "shared memory", "distributed", "linked")


@claim()
async def a_backward_pass_over_other_weights_is_refused(make: Make) -> None:
    source = Tied(1.0)
    async with make(source) as ends:
        await ends.deliver()
        await ends.receivers.forward()
        for version in range(2, 6):
            source.fill(float(version))
            await ends.deliver()
        for said in await ends.receivers.backward():
            assert "modified by an inplace operation" in said


@claim(only=_maps)
async def a_kept_snapshot_of_a_mapped_model_stays_as_it_is(make: Make) -> None:
    source = Tied(1.0)
    async with make(source) as ends:
        for version in range(1, 9):
            source.fill(float(version))
            await ends.deliver()
            await ends.expect(version, float(version))
            await ends.receivers.keep_snapshot()
            assert await ends.receivers.snapshots() == [[{float(each + 1)} for each in range(version)]] * ends.size


@claim(only=lambda way: way.kind in ("multiprocess", "shared memory", "linked"))
async def who_leaves_by_an_error_says_which(make: Make) -> None:
    async with make(Tied(1.0)) as ends:
        await ends.connect()
        await ends.scheme.__aexit__(ValueError, ValueError("loss is nan"), None)
        for said in await ends.receivers.end_of_waiting():
            assert said == "ClosedError: the sender of 'policy' has left by an error: ValueError: loss is nan"


@claim(only=_maps)
async def a_snapshot_that_is_taken_anew_with_each_version_keeps_one_only(make: Make) -> None:
    source = Tied(1.0)
    async with make(source) as ends:
        for version in range(1, 9):
            source.fill(float(version))
            await ends.deliver()
            assert await ends.receivers.snapshots() == [[{float(version - 1)}] if version > 1 else []] * ends.size
            await ends.receivers.drop_snapshots()
            await ends.receivers.keep_snapshot()
        if ends.sender._sending.publisher.worker_ids:
            assert await ends.receivers.is_mapped() == [True] * ends.size
