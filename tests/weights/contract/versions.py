"""Conformance claims: version numbers, deadlines, readers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rlinf_async.errors import DeadlineExceeded, RemoteError
from tests.weights.contract.claims import Make, claim
from tests.weights.ends import Tied


@claim()
async def versions_only_go_up(make: Make) -> None:
    async with make() as ends:
        await ends.deliver(version=7)
        await ends.expect(7, 1.0)
        for version in (7, 3):
            with pytest.raises(ValueError, match=f"version {version} is not after version 7"):
                ends.sender.send(version=version)
        assert (await ends.deliver()).version == 8
        await ends.expect(8, 1.0)


@claim()
async def a_number_that_comes_late_or_twice_changes_nothing(make: Make) -> None:
    """What was sent is told once more by a publisher; other transports send other weights by those numbers."""
    async with make() as ends:
        await ends.receivers.serve()
        await ends.sender.send(Tied(1.0))
        overheard = ends.overhear()
        for version in (2, 3):
            await ends.sender.send(Tied(float(version)))
        for version in (2, 3):
            if overheard is not None:
                await overheard.repeat(version)
            else:
                late = pytest.raises((ValueError, RemoteError), match="version 2 of 'policy' is not after version 3")
                for transport in ends.sender._targets(None).values():
                    with late if version < 3 else contextlib.nullcontext():
                        await transport.send_weights("policy", Tied(9.0).state_dict(), version)
            await ends.expect(3, 3.0)
        assert (await ends.sender.send(Tied(4.0))).version == 4
        await ends.expect(4, 4.0)


@claim()
async def who_does_not_answer_in_time_is_named_and_is_whole_with_the_next_version(make: Make) -> None:
    async with make() as ends:
        await ends.receivers.serve()
        await ends.sender.send()
        await ends.last.hold()
        with pytest.raises(DeadlineExceeded) as caught:
            await ends.sender.send(Tied(2.0), timeout=0.1)
        told = f"worker {ends.size - 1} does not have version 2: DeadlineExceeded"
        assert told in str(caught.value.__notes__), caught.value.__notes__
        assert await ends.last.look() == [(1, {1.0})]
        await ends.last.release()
        report = await ends.sender.send(Tied(3.0))
        await ends.expect(report.version, 3.0)


@claim()
async def nobody_reads_while_weights_are_applied_and_a_reader_knows_how_far_behind_it_is(make: Make) -> None:
    async with make() as ends:
        await ends.receivers.serve()
        await ends.sender.send()
        assert await ends.last.hold() == [1]
        work = ends.sender.send(Tied(2.0))
        await ends.last.on_message(2)
        await asyncio.sleep(0.01)
        assert await ends.last.standing() == [(1, 2, 1)]
        assert await ends.last.look() == [(1, {1.0})]
        assert not work.done()
        await ends.last.release()
        await ends.receivers.wait_fresh(0)
        await work
        assert await ends.receivers.standing() == [(2, 2, 0)] * ends.size
        await ends.expect(2, 2.0)
        assert await ends.last.hold() == [2]
        await ends.last.release()


@claim()
async def a_version_can_be_waited_for_and_the_wait_has_an_end(make: Make) -> None:
    async with make() as ends:
        work = ends.sender.send()
        if make.way.kind == "distributed":  # over a link, whoever waits receives
            await ends.receivers.take()
        await ends.receivers.wait_version(1)
        await work
        await ends.expect(1, 1.0)
        with pytest.raises(DeadlineExceeded):
            await ends.receivers.wait_version(2, 0.02)
