"""Messages through a daemon, and the notification of a worker's end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_async._core.frames import FrameError
from rlinf_async._core.segment import write_segment
from rlinf_launcher.daemon.death_watch import DeathWatch
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.router import Router

FACTS = [0, 0, 1, 0, None, 100, None]


class Wire:
    """A connection, or a node link, that records what it sends."""

    lost: str | None = None

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.fds: list[int] = []

    def send(self, frame: Any, fds: Any = ()) -> None:
        self.sent.append(list(frame))
        self.fds.extend(fds)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


class Process:
    closing = False


class House:
    """A router of node 0 with workers, and node 1 beside it."""

    def __init__(self) -> None:
        self.router = Router(asyncio.get_running_loop(), 0, lambda *_: None)
        self.exit_reports = DeathWatch(self.router)
        self.node_link = Wire()
        self.router.node_links[1] = self.node_link  # type: ignore[assignment]
        self.wires: list[Wire] = [self.node_link]

    def worker(self, role: str = "worker") -> tuple[Endpoint, Wire]:
        endpoint, wire = self.router.new_endpoint(role), Wire()
        endpoint.connection = wire  # type: ignore[assignment]
        endpoint.process = Process() if role == "worker" else None  # type: ignore[assignment]
        self.wires.append(wire)
        return endpoint, wire

    def close(self) -> None:
        for wire in self.wires:
            wire.close()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    house.close()


def message(route: Any, body: Any = b"hello", count: int = 0) -> list[Any]:
    return [frames.MESSAGE, count, 12345, route, FACTS, body]


async def test_a_message_is_handed_on_in_its_senders_name(house: House) -> None:
    source, _ = house.worker()
    target, wire = house.worker()
    house.router.from_endpoint(source, message(frames.route_to([target.id])), [])
    assert wire.sent == [[frames.MESSAGE, 0, source.id, 0, FACTS, b"hello"]]


async def test_a_broadcast_crosses_to_another_node_once(house: House) -> None:
    source, _ = house.worker()
    (first, one), (second, two) = house.worker(), house.worker()
    far = [frames.endpoint(1, number) for number in (4, 5, 6)]
    fd = write_segment([b"x" * 50_000], 50_000)
    route = frames.route_to([first.id, *far, second.id])
    house.router.from_endpoint(source, message(route, 50_000, 1), [fd])
    assert [frame[3] for frame in one.sent + two.sent] == [0, 4]
    assert [frame[3] for frame in house.node_link.sent] == [[[1, [4, 1, 5, 2, 6, 3]]]]
    assert len({os.fstat(fd).st_ino for wire in (one, two, house.node_link) for fd in wire.fds}) == 1
    assert [len(wire.fds) for wire in (one, two, house.node_link)] == [1, 1, 1]


async def test_a_group_calls_arguments_cross_to_another_node_once(house: House) -> None:
    driver, _ = house.worker("driver")
    (first, one), (second, two) = house.worker(), house.worker()
    fd = write_segment([b"x" * 50_000], 50_000)
    route = frames.route_to([first.id, frames.endpoint(1, 4), second.id])
    house.router.from_endpoint(driver, [frames.CALL, 1, driver.id, route, 7, "step", 1, 50_000], [fd])
    assert [frame[3] for frame in one.sent + two.sent + house.node_link.sent] == [0, 2, [[1, [4, 1]]]]
    assert [len(wire.fds) for wire in (one, two, house.node_link)] == [1, 1, 1]
    assert len({os.fstat(fd).st_ino for wire in (one, two, house.node_link) for fd in wire.fds}) == 1


async def test_a_message_from_another_node_is_shared_there(house: House) -> None:
    (first, one), (second, two) = house.worker(), house.worker()
    fd = write_segment([b"x" * 50_000], 50_000)
    frame = message(frames.route_to([first.id, second.id]), 50_000, 1)
    frame[2] = frames.endpoint(1, 9)
    node_link: Any = house.node_link
    node_link.node = 1
    house.router.from_node(node_link, frame, [fd])
    assert [len(wire.fds) for wire in (one, two)] == [1, 1]
    assert one.sent[0][2] == frames.endpoint(1, 9)


async def test_memory_with_an_unknown_frame_of_another_node_is_closed(house: House) -> None:
    fd = write_segment([b"x" * 50_000], 50_000)
    node_link: Any = house.node_link
    node_link.node = 1
    house.router.from_node(node_link, [10_000, 1, frames.endpoint(1, 9)], [fd])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def test_workers_that_have_ended_and_drivers_get_no_messages(house: House) -> None:
    source, _ = house.worker()
    dead, wire = house.worker()
    dead.exit_report = b"report"
    driver, at_driver = house.worker("driver")
    fd = write_segment([b"x" * 50_000], 50_000)
    route = frames.route_to([dead.id, driver.id, frames.endpoint(0, 999), frames.endpoint(7, 1)])
    house.router.from_endpoint(source, message(route, 50_000, 1), [fd])
    assert not wire.sent
    assert not at_driver.sent
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def test_a_driver_sends_no_messages(house: House) -> None:
    driver, _ = house.worker("driver")
    target, wire = house.worker()
    house.router.from_endpoint(driver, message(frames.route_to([target.id])), [])
    assert not wire.sent


@pytest.mark.parametrize("body", [10, None, [1, 2]])  # a text says why the content is not there
async def test_a_malformed_body_is_its_senders_error(house: House, body: Any) -> None:
    source, _ = house.worker()
    with pytest.raises(FrameError):
        house.router.from_endpoint(source, message(frames.route_to([1]), body), [])


async def test_without_descriptors_receivers_learn_of_a_lost_message(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", exhausted)
    source, _ = house.worker()
    (first, one), (second, two) = house.worker(), house.worker()
    fd = write_segment([b"x" * 50_000], 50_000)
    house.router.from_endpoint(source, message(frames.route_to([first.id, second.id]), 50_000, 1), [fd])
    for wire in (one, two):
        ((_, count, _, _, _, body),) = wire.sent
        assert count == 0
        assert body.startswith("the daemon of node 0 cannot pass the message on: [Errno 24] Too many open files")


# -- ends -----------------------------------------------------------------------------------------------------------


async def test_watchers_learn_of_an_end_once_in_its_name(house: House) -> None:
    (watched, _), (_, _), (watcher, wire) = house.worker(), house.worker(), house.worker()
    far = frames.endpoint(1, 3)
    for source in (watcher.id, watcher.id, far):
        await house.exit_reports.watch(Requester(source, 1), operations.Watch([watched.number]))
    house.exit_reports.ended(watched.id, {"rank": 3})
    facts = {"endpoint": watched.id, "report": {"rank": 3}}
    assert wire.sent == [[frames.EVENT, 0, watched.id, watcher.id, "ended", facts]]
    assert house.node_link.sent == [[frames.EVENT, 0, watched.id, far, "ended", facts]]
    house.exit_reports.ended(watched.id, {"rank": 3})
    assert len(wire.sent) == 1


async def test_an_end_that_has_been_is_told_at_once(house: House) -> None:
    (dead, _), (closed, _), (watcher, wire) = house.worker(), house.worker(), house.worker()
    dead.exit_report = closed.exit_report = frames.pack({"rank": 3})
    closed.process.closing = True  # type: ignore[union-attr]
    await house.exit_reports.watch(Requester(watcher.id, 1), operations.Watch([dead.number, closed.number, 999]))
    assert [frame[5] for frame in wire.sent] == [
        {"endpoint": dead.id, "report": {"rank": 3}},
        {"endpoint": closed.id, "report": None},
        {"endpoint": 999, "report": None},
    ]


async def test_a_watcher_of_a_replaced_worker_learns_its_death(house: House) -> None:
    """The watcher must not be told that the group was closed: the rank comes back."""
    (dead, _), (watcher, wire) = house.worker(), house.worker()
    dead.exit_report = frames.pack({"rank": 1, "returns": True})
    house.router.replaced[dead.number] = house.router.endpoints.pop(dead.number)
    await house.exit_reports.watch(Requester(watcher.id, 1), operations.Watch([dead.number]))
    facts = {"endpoint": dead.id, "report": {"rank": 1, "returns": True}}
    assert wire.sent == [[frames.EVENT, 0, dead.id, watcher.id, "ended", facts]]


async def test_who_is_gone_is_not_told(house: House) -> None:
    (watched, _), (watcher, wire) = house.worker(), house.worker()
    await house.exit_reports.watch(Requester(watcher.id, 1), operations.Watch([watched.number]))
    house.exit_reports.forget(watcher.id)
    house.exit_reports.ended(watched.id, None)
    assert not wire.sent
    assert not house.exit_reports._watchers_of
