"""Links between daemons outlive their connections: over real gRPC, through a cable that breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rlinf_async._core import link_messages
from rlinf_async._wire import daemon_link, hello
from rlinf_async._wire.dial import dial
from tests._support.cable import Cable
from tests._support.daemon_link_pairs import AUTHORITY, PIECE, RUN, Owner, Server

LEASE_S = 1.5


@asynccontextmanager
async def pair(lease: float = LEASE_S) -> AsyncIterator[tuple[Owner, Owner, Cable, Server]]:
    """Both ends of a link, who dialled and who accepted, and the cable between them."""
    async with Server(lease=lease) as server, Cable(server.address) as cable:
        own = {"run": RUN, "credentials": AUTHORITY.issue(0), "lease": lease}
        left = Owner(await dial(cable.address, node=0, peer=1, timeout=5, **own))
        right = Owner(await server.accepted.get())
        try:
            yield left, right, cable, server
        finally:
            cable.mend()
            await asyncio.gather(left.link.close(), right.link.close())


class Traffic:
    """Numbered bytes in both directions on both streams, for as long as it is wanted."""

    def __init__(self, left: Owner, right: Owner) -> None:
        self.owners = (left, right)
        self.control = {left: b"", right: b""}
        self.bulk: dict[Owner, list[bytes]] = {left: [], right: []}
        self._goes_on = True

    async def flow(self, owner: Owner) -> None:
        number = 0
        while self._goes_on:
            number += 1
            data = b"%d." % number
            self.control[owner] += data
            owner.link.send(data)
            piece = number.to_bytes(4) + bytes(PIECE // 8)
            await owner.link.send_bulk(piece)
            self.bulk[owner].append(piece)
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Everything has come: all of it, once, in order."""
        self._goes_on = False
        for here, there in (self.owners, self.owners[::-1]):
            await there.until(lambda here=here, there=there: len(there.control) >= len(self.control[here]))
            await there.until(lambda here=here, there=there: len(there.bulk) >= len(self.bulk[here]))
            assert there.control == self.control[here]
            assert there.bulk == self.bulk[here]
            assert there.lost == []


async def test_connections_that_are_reset_under_traffic_lose_nothing_and_repeat_nothing() -> None:
    async with pair() as (left, right, cable, _), asyncio.TaskGroup() as tasks:
        traffic = Traffic(left, right)
        for owner in (left, right):
            tasks.create_task(traffic.flow(owner))
        for count in range(1, 9):
            known = len(right.bulk), len(left.bulk)
            await right.until(lambda known=known: len(right.bulk) > known[0] + 3)
            await left.until(lambda known=known: len(left.bulk) > known[1] + 3)
            cable.reset()
            await right.until(lambda count=count: cable.carried >= 2 * (count + 1))
        await traffic.end()


@pytest.mark.parametrize("directions", [(), ("there",), ("back",)], ids=["both ways", "there", "back"])
async def test_a_network_that_is_away_for_less_than_the_lease_costs_time_only(directions: tuple[str, ...]) -> None:
    async with pair(lease=3) as (left, right, cable, _), asyncio.TaskGroup() as tasks:
        traffic = Traffic(left, right)
        for owner in (left, right):
            tasks.create_task(traffic.flow(owner))
        await right.until(lambda: len(right.bulk) > 3)
        cable.cut(*directions)
        with pytest.raises(TimeoutError):
            await left.until(lambda: left.lost or right.lost, timeout=1.8)
        assert (left.link.seconds_down > 1) or (right.link.seconds_down > 1)
        assert left.link._bulk.kept_bytes <= daemon_link._MAX_KEPT_BYTES
        cable.mend()
        await traffic.end()
        assert left.link.seconds_down == right.link.seconds_down == 0


async def test_a_network_that_is_busy_for_several_leases_with_large_contents_is_no_loss_and_carries_calls() -> None:
    async with pair() as (left, right, cable, _):
        right.link.on_control = right.link.send  # an echo
        cable.seconds_per_byte = 1 / 250_000  # 2 Mbit/s: a piece takes more than a second
        pieces = [number.to_bytes(4) + bytes(PIECE - 4) for number in range(4)]
        for piece in pieces:
            await left.link.send_bulk(piece)
        slowest = 0.0
        while len(right.bulk) < len(pieces):
            began, known = time.monotonic(), len(left.control)
            left.link.send(b"echo")
            await left.until(lambda known=known: len(left.control) > known)
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < LEASE_S
        assert right.bulk == pieces
        assert left.lost == right.lost == []
        assert cable.carried == 2


@pytest.mark.parametrize("is_reached", [None, True])
async def test_a_silent_connection_is_replaced_only_where_its_peer_can_be_reached(
    monkeypatch: pytest.MonkeyPatch, is_reached: bool | None
) -> None:
    """What stands in a long queue of the network's comes sooner than anything on another connection."""

    async def accepts(address: str, timeout: float) -> bool | None:
        return is_reached

    async with pair(lease=3) as (left, right, cable, _):
        monkeypatch.setattr(left.link, "_accepts", accepts)
        cable.cut()
        with pytest.raises(TimeoutError):
            await left.until(lambda: left.lost or right.lost, timeout=1.8)
        cable.mend()
        left.link.send(b"here")
        await right.until(lambda: right.control == b"here")
        assert left.link.seconds_down == 0
        assert (cable.carried > 2) == (is_reached is True)


async def test_a_network_that_is_away_for_longer_is_told_once_on_both_sides_after_the_lease() -> None:
    async with pair() as (left, right, cable, _):
        cut = time.monotonic()
        cable.cut()
        for owner in (left, right):
            await owner.until(lambda owner=owner: owner.lost)
            assert LEASE_S * 0.9 < time.monotonic() - cut < LEASE_S * 1.2 + 1
            assert owner.lost[0].startswith("no sign of life for 1.")
            assert "its lease is 1.5 s (RLINF_LEASE_S)" in owner.lost[0]
            assert not owner.link.peer_has_ended
        cable.mend()
        with pytest.raises(TimeoutError):
            await left.until(lambda: len(left.lost + right.lost) > 2, timeout=0.3)


async def test_a_daemon_that_was_started_again_is_not_taken_for_the_one_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair(lease=20) as (left, right, cable, _):
        monkeypatch.setattr(hello, "INCARNATION", "another")
        cut = time.monotonic()
        cable.reset()
        await right.until(lambda: right.lost)
        await left.until(lambda: left.lost)
        assert time.monotonic() - cut < 2
        assert right.lost == ["its daemon was started again"]
        assert "node 0 was started again: node 1 had a link to its daemon of before" in left.lost[0]


async def test_a_link_that_one_side_has_given_up_is_over_for_the_other_as_soon_as_it_asks() -> None:
    async with pair(lease=20) as (left, right, cable, _):
        cable.cut()
        await right.link.close()
        cable.mend()
        cable.reset()
        await left.until(lambda: left.lost)
        assert "node 1 has no link to node 0 any more: it has given it up" in left.lost[0]


async def test_what_is_acknowledged_is_not_kept_also_where_nothing_is_sent_back() -> None:
    async with pair() as (left, right, _, _):
        for number in range(3 * link_messages.ACK_MESSAGES):
            await left.link.send_bulk(bytes([number]))
            left.link.send(bytes([number]))
        await right.until(lambda: len(right.bulk) == 3 * link_messages.ACK_MESSAGES)
        async with asyncio.timeout(5):
            while left.link._bulk.kept_bytes or left.link._control.kept_bytes:
                await asyncio.sleep(0.01)


async def test_bulk_of_a_link_that_is_down_waits_and_does_not_fill_the_memory() -> None:
    async with pair(lease=20) as (left, right, cable, _):
        cable.cut()
        cable.reset()
        waiting = [asyncio.create_task(left.link.send_bulk(bytes(PIECE))) for _ in range(8)]
        done, _ = await asyncio.wait(waiting, timeout=0.3)
        assert 3 <= len(done) <= 6
        assert waiting[-1] not in done
        cable.mend()
        await right.until(lambda: len(right.bulk) == 8)
        await asyncio.gather(*waiting)
