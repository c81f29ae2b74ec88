"""``publish`` and ``follow`` in a simulated cluster: what happens between two steps of a send, a wait and a close."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import ClosedError, Cluster, NodePlacementStrategy, PeerLost, WeightMismatch, Worker, follow, publish
from rlinf_async.testing import SimCluster, monotonic

WIDTH = 1 << 19  # packed in a thread: a send takes several turns of the loop


class End(Worker):
    """Trainer or follower."""

    def __init__(self) -> None:
        super().__init__()
        self.model = {"w": torch.zeros(WIDTH)}
        self.weights: Any = None

    async def play(self, script: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        return await script(self, *arguments)


def simulated(script: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> Any:
    """What the script returns, which is given a trainer and a rollout worker; each group is of one rank."""
    sim = SimCluster(nodes=1, seed=1)

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster, asyncio.timeout(300):
            groups = [End.create_group().launch(cluster, NodePlacementStrategy([0]), name=name) for name in NAMES]
            return await script(*groups)

    return sim.run(main)


NAMES = ("trainer", "rollout")


async def follow_on(end: End, **options: Any) -> int:
    end.weights = await follow(end.model, of="trainer", **options).__aenter__()
    return int(end.weights.version)


async def publish_on(end: End) -> None:
    end.weights = await publish(end.model, to="rollout").__aenter__()


async def close(end: End) -> None:
    await end.weights.close()


async def look(end: End) -> tuple[int, float]:
    async with end.weights.reading() as version:
        return version, float(end.model["w"][0])


async def read_twice(end: End) -> tuple[int, int, int]:
    """Enter twice in a row, so that one version is applied in between; then see what comes."""
    await follow_on(end)
    async with end.weights.reading() as first:
        await asyncio.sleep(2)
    async with end.weights.reading() as second:
        await asyncio.sleep(5)
    with contextlib.suppress(ClosedError):
        await end.weights.wait_version(100, 1.0)
    return first, second, end.weights.version


# -- a send while somebody waits for the delivery of the version before ------------------------------------------------


async def send_while_it_is_delivered(end: End) -> tuple[int, int, bool]:
    async with publish(end.model, to="rollout") as weights:
        await weights.delivered()
        await asyncio.sleep(1)
        await weights.send()
        delivering = weights.delivered()
        await weights.send()
        delivered, begun = await delivering, monotonic()
    return weights.version, delivered.version, monotonic() - begun > 4


def test_leaving_waits_for_the_version_that_was_sent_while_another_was_waited_for() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        reading = rollout.play(read_twice)
        return await trainer.play(send_while_it_is_delivered), await reading

    assert simulated(script) == ([(3, 2, True)], [(1, 2, 3)])


async def fail_twice(end: End) -> list[int]:
    """Send two versions that do not fit any more, and note what each step raises of them."""
    told = []

    async def step(waiting: Any) -> None:
        try:
            await waiting
        except WeightMismatch as error:
            told.append(int(error.__notes__[-1].partition(" version ")[2].partition(":")[0]))

    async with publish(end.model, to="rollout") as weights:
        await weights.delivered()
        await asyncio.sleep(1)
        await weights.send()
        delivering = weights.delivered()
        await weights.send()
        await step(delivering)
        for _ in range(2):
            await asyncio.sleep(1)
            await step(weights.send())
        await step(weights.delivered())
    return told


async def misfit(end: End) -> None:
    await follow_on(end)
    async with end.weights.reading():
        await asyncio.sleep(2)
        end.model["w"] = torch.zeros(7)
    await asyncio.sleep(1)
    end.model["w"] = torch.zeros(WIDTH)
    with contextlib.suppress(ClosedError):
        await end.weights.wait_version(100, 10.0)


def test_each_failure_is_told_once_where_one_of_them_was_waited_for_meanwhile() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        following = rollout.play(misfit)
        told = await trainer.play(fail_twice)
        await following
        return told

    assert simulated(script) == [[2, 3]]


# -- a model that does not fit at first --------------------------------------------------------------------------------


async def follow_unfit(end: End) -> int:
    end.model = {"w": torch.zeros(7)}
    end.weights = follow(end.model, of="trainer")
    for waiting in (lambda: end.weights.wait_version(1), lambda: look(end)):
        with pytest.raises(WeightMismatch, match="'w' has shape"):
            await waiting()
    end.model["w"] = torch.zeros(WIDTH)
    await end.send("mended", "trainer", 0)
    await end.recv("trainer", 0)
    await end.weights.wait_version(2, 5)
    return (await look(end))[0]


async def send_until_it_fits(end: End) -> list[str]:
    async with publish(end.model, to="rollout") as weights:
        with pytest.raises(WeightMismatch, match="'w' has shape"):
            await weights.delivered()
        await end.recv("rollout", 0)
        await weights.send()
        report = await weights.delivered()
        await end.send("delivered", "rollout", 0)
        return [ack.status for ack in report.per_worker.values()]


def test_one_that_was_not_entered_gets_the_version_that_its_mended_model_takes() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        following = rollout.play(follow_unfit)
        return await trainer.play(send_until_it_fits), await following

    assert simulated(script) == ([["applied"]], [2])


# -- a follower that leaves and comes back -----------------------------------------------------------------------------


async def follow_again(end: End) -> None:
    """Leave while a version is under way, from inside a reading block; follow again, and apply nothing for a while."""
    await follow_on(end, apply="map")
    async with end.weights.reading():
        await asyncio.sleep(2)
        begun = monotonic()
        await end.weights.close()
        assert monotonic() - begun < 1
    end.weights = follow(end.model, of="trainer", apply="map")
    async with end.weights._subscriber.gate.reading():
        await asyncio.sleep(5)
    await end.weights.wait_version(2)
    await end.weights.close()


async def deliver_to_who_is_back(end: End) -> list[tuple[str, str]]:
    async with publish(end.model, to="rollout", apply="map") as weights:
        await weights.delivered()
        await asyncio.sleep(1)
        await weights.send()
        await asyncio.sleep(3)
        return [(name, ack.status) for name, ack in (await weights.delivered()).per_worker.items()]


def test_who_has_left_and_follows_again_is_waited_for() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        following = rollout.play(follow_again)
        found = await trainer.play(deliver_to_who_is_back)
        await following
        return found

    assert simulated(script) == [[("rollout:0", "applied")]]


async def end_a_line_that_was_never_used(end: End) -> list[Any]:
    """Find in one thread that a new line has ended, while another thread has the next one of that name and its JOIN."""
    async with publish(end.model, to="rollout") as weights:
        await weights.delivered()
        followers, publisher = weights._followers, weights._sending.publisher
        assert followers is not None
        assert publisher is not None
        stale: Any = SimpleNamespace(worker="rollout:0", group="rollout", rank=0, has_joined=False)
        line, followers._lines["rollout:0"] = followers._lines["rollout:0"], stale
        is_there = followers._exchange.is_there

        def overtaken(group: str, rank: int) -> bool:
            followers._lines["rollout:0"] = line
            return is_there(group, rank)

        followers._exchange.is_there = overtaken  # type: ignore[method-assign]
        followers._ended(stale, PeerLost("gone"))
        followers._exchange.is_there = is_there  # type: ignore[method-assign]
        await weights.send()
        return [*publisher.worker_ids, *(await weights.delivered()).per_worker]


def test_the_end_of_a_line_that_nobody_has_joined_removes_no_follower() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        following = rollout.play(follow_until_it_ends)
        found = await trainer.play(end_a_line_that_was_never_used)
        await following
        return found

    assert simulated(script) == [["rollout:0", "rollout:0"]]


async def follow_until_it_ends(end: End) -> None:
    await follow_on(end)
    with contextlib.suppress(ClosedError):
        await end.weights.wait_version(100)


# -- closes ------------------------------------------------------------------------------------------------------------


async def close_again(end: End, how: str) -> str:
    """Close while a close is under way, or leave and be cancelled in the middle; then use the name again."""
    weights = publish(end.model, to="rollout")
    await weights.send()
    ends = weights._end

    async def end_slowly() -> None:
        await asyncio.sleep(1)
        await ends()

    weights._end = end_slowly  # type: ignore[method-assign]
    if how == "twice":
        weights.close()
        await asyncio.sleep(0.5)
        await weights.close()
    else:
        leaving = asyncio.create_task(weights.__aexit__(ValueError, ValueError("loss is nan")))
        await asyncio.sleep(0.5)
        leaving.cancel()
        await asyncio.wait([leaving])
    await publish(end.model, to="rollout").close()
    return weights._failure


@pytest.mark.parametrize(("how", "failure"), [("twice", ""), ("cancelled", "ValueError: loss is nan")])
def test_the_name_is_free_once_a_close_is_over_whoever_has_begun_it(how: str, failure: str) -> None:
    async def script(trainer: Any, _: Any) -> Any:
        return await trainer.play(close_again, how)

    assert simulated(script) == [failure]


async def wait_in_vain(end: End) -> str:
    weights = publish(end.model, to="rollout")
    await weights.send()
    delivering = weights.delivered()
    await asyncio.sleep(1)
    await weights.close()
    async with asyncio.timeout(1):
        try:
            await delivering
        except ClosedError as error:
            return str(error)
    return "delivered"


def test_a_close_ends_the_wait_for_ranks_that_do_not_follow() -> None:
    async def script(trainer: Any, _: Any) -> Any:
        return await trainer.play(wait_in_vain)

    (said,) = simulated(script)
    assert "is closed" in said


async def wait_while_it_closes(end: End) -> str:
    """Another thread has seen that the scope is open, and begins to wait just before the loop of it stops."""
    await follow_on(end)
    stop, waiting = end.weights._thread.stop, []

    def wait_and_stop() -> None:
        waiting.append(end.weights._tasks.run(end.weights._wait_version(9, None), "version 9", abandonable=True))
        stop()

    end.weights._thread.stop = wait_and_stop
    await end.weights.close()
    try:
        await waiting[0].async_wait(5)
    except ClosedError:
        return "closed"
    return "done"


def test_a_wait_that_begins_while_the_scope_is_closed_ends() -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        await trainer.play(publish_on)
        said = await rollout.play(wait_while_it_closes)
        await trainer.play(close)
        return said

    assert simulated(script) == ["closed"]


# -- sends that wait for one another -----------------------------------------------------------------------------------


async def cancel_the_second(end: End) -> list[int]:
    async with publish(end.model, to="rollout") as weights:
        sends = [weights.send() for _ in range(3)]
        sends[1].cancel()
        sends += [weights.send() for _ in range(2)]
        return [await sends[number] for number in (0, 2, 3, 4)]


async def cancel_the_one_that_is_awaited(end: End) -> list[int]:
    async with publish(end.model, to="rollout") as weights:
        first, second = weights.send(), weights.send()
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([asyncio.ensure_future(second)])
        third = weights.send()
        return [await first, await third]


@pytest.mark.parametrize("cancelled", [cancel_the_second, cancel_the_one_that_is_awaited])
def test_sends_go_one_after_another_although_one_between_them_is_cancelled(cancelled: Any) -> None:
    async def script(trainer: Any, rollout: Any) -> Any:
        following = rollout.play(follow_on)
        found = await trainer.play(cancelled)
        await following
        return found

    (found,) = simulated(script)
    assert found == list(range(2, 2 + len(found)))
