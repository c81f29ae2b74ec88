"""The router: direct sockets, replies relayed after a broken one, requests of daemons."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from rlinf_async._core import frames
from rlinf_async._core.frames import FrameError, Status
from rlinf_async._core.operations import ScrapeNode
from rlinf_async.errors import LaunchError
from rlinf_launcher.daemon import routed_frames, router as routers
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Handlers
from rlinf_launcher.daemon.router import Router


def test_direct_sockets_are_bounded_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "MAX_DIRECT_WORKERS", 2)
    loop = asyncio.new_event_loop()
    router = Router(loop, 0, lambda source, ask, operation, arguments: None)
    workers = [router.new_endpoint("worker") for _ in range(3)]
    assert [router.grant_direct_sockets(worker) for worker in workers] == [True, True, False]
    del router.endpoints[workers[0].number]
    assert router.grant_direct_sockets(router.new_endpoint("worker"))
    assert not router.grant_direct_sockets(router.new_endpoint("worker"))
    loop.close()


class Sent:
    """A connection that records what it sends."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.writes: list[list[Any]] = []
        """The slots of the answers that left together."""

    def send_all(self, sent: Any) -> None:
        self.writes.append([frame[5] for frame, _ in sent])

    def send(self, frame: Any, fds: Any = (), **how: Any) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        pass


@pytest.fixture
def router() -> Iterator[Router]:
    loop = asyncio.new_event_loop()
    yield Router(loop, 0, lambda source, ask, operation, arguments: None)
    loop.close()


def test_own_requests_are_answered_refused_or_cancelled(router: Router) -> None:
    answered, refused, given_up = (router.ask(0, ScrapeNode()) for _ in range(3))
    given_up.cancel()
    daemon = frames.endpoint(0, 0)
    router.deliver((frames.ANSWER, 0, daemon, daemon, 1, True, {"samples": {}}))
    router.deliver((frames.ANSWER, 0, daemon, daemon, 2, False, ["ValueError", "no such thing"]))
    router.deliver((frames.ANSWER, 0, daemon, daemon, 3, True, {}))
    assert answered.result() == {"samples": {}}
    with pytest.raises(LaunchError, match="no such thing"):
        refused.result()


def test_a_call_that_no_worker_takes_is_refused_with_the_reason(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, subprocess = router.new_endpoint("worker"), router.new_endpoint("worker")
    dead.exit_report, subprocess.root = frames.pack({"rank": 3}), dead
    answers: list[Any] = []
    monkeypatch.setattr(router, "deliver", lambda frame: answers.append((frame[6], frames.unpack(frame[7]))))
    for endpoint in (dead, subprocess, None):
        router._refuse(frames.endpoint(0, 9), 7, 0, endpoint)
    assert [status for status, _ in answers] == [Status.DIED, Status.UNKNOWN, Status.UNKNOWN]
    assert "is a subprocess of a worker" in answers[1][1]
    assert answers[2][1] == "the worker is gone: its group was closed"


def test_a_node_that_ends_waits_for_no_answer(router: Router) -> None:
    asked = router.ask(0, ScrapeNode())
    router.cancel_requests()
    assert asked.cancelled()
    assert router.ask(0, ScrapeNode()).cancelled()
    assert router.ask(7, ScrapeNode()).cancelled()


def test_a_request_to_an_unknown_node_is_refused_at_once(router: Router) -> None:
    with pytest.raises(LaunchError, match="there is no node 7 in this run"):
        router.ask(7, ScrapeNode()).result()


def attach(router: Router, role: str) -> tuple[Endpoint, Sent]:
    endpoint, sent = router.new_endpoint(role), Sent()
    endpoint.connection = sent  # type: ignore[assignment]
    if role == "worker":
        endpoint.process = object()  # type: ignore[assignment]
    return endpoint, sent


@pytest.mark.parametrize("is_broken", [True, False], ids=["a socket that broke", "no such socket"])
def test_an_answer_lost_by_a_socket_is_forwarded_although_settled(
    router: Router, is_broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (driver, heard), (worker, _) = attach(router, "driver"), attach(router, "worker")
    route = frames.route_to([worker.id])
    router.from_endpoint(driver, [frames.CALL, 0, driver.id, route, 7, "step", 0, b""], [])
    router.from_endpoint(worker, [frames.SETTLED, 0, worker.id, [driver.id, 7]], [])
    if is_broken:
        router.from_endpoint(worker, [frames.RESUME, 0, worker.id, driver.id, worker.id, 0], [])
    router.from_endpoint(worker, [frames.REPLY, 0, worker.id, driver.id, 7, 0, int(Status.OK), b"found"], [])
    answers = [frame[-1] for frame in heard.frames if frame[0] == frames.REPLY]
    assert answers == ([b"found"] if is_broken else [])
    assert ("answered a call that it had not got" in caplog.text) != is_broken


def test_an_ended_workers_endpoint_keeps_no_buffers(router: Router) -> None:
    worker, _ = attach(router, "worker")
    router.fail_pending_calls(worker, {}, expected=False)
    assert worker.connection is None


def test_calls_and_cancels_reach_each_target_with_its_slot(router: Router) -> None:
    driver, _ = attach(router, "driver")
    workers = [attach(router, "worker") for _ in range(3)]
    route = frames.route_to([worker.id for worker, _ in workers])
    router.from_endpoint(driver, [frames.CALL, 0, driver.id, route, 7, "step", 0, b""], [])
    router.from_endpoint(driver, [frames.CANCEL, 0, driver.id, route, 7], [])
    assert [[frame[3] for frame in sent.frames] for _, sent in workers] == [[0, 0], [1, 1], [2, 2]]


def test_calls_of_a_gone_caller_are_cancelled_and_no_others(router: Router) -> None:
    (gone, _), (driver, _) = attach(router, "driver"), attach(router, "driver")
    worker, sent = attach(router, "worker")
    for caller in (gone, driver):
        call = [frames.CALL, 0, caller.id, frames.route_to([worker.id]), 7, "step", 0, b""]
        router.from_endpoint(caller, call, [])
    router.drop_caller(gone.id)
    assert [frame[2] for frame in sent.frames if frame[0] == frames.CANCEL] == [gone.id]


def test_an_answer_that_cannot_travel_becomes_an_error_that_can(router: Router) -> None:
    driver, heard = attach(router, "driver")
    heard.send = lambda frame, fds=(), **how: heard.frames.append(frames.unpack(frames.pack(frame)))  # type: ignore[method-assign]
    Handlers(router, ()).answer((driver.id, 7), object())
    ((*answer, (kind, text)),) = heard.frames
    assert answer == [frames.ANSWER, 0, frames.endpoint(0, 0), driver.id, 7, False]
    assert (kind, "object" in text) == ("LaunchError", True)


@pytest.mark.parametrize("nbytes", [8, 9])
def test_a_body_without_memory_stays_inline_or_is_explained(
    router: Router, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EMFILE, "no descriptor is free")

    monkeypatch.setattr(routed_frames, "write_segment", fail)
    monkeypatch.setattr(frames, "MAX_UNSEALED_BYTES", 8)
    (driver, _), (worker, sent) = attach(router, "driver"), attach(router, "worker")
    route, content = frames.route_to([worker.id]), memoryview(bytes(nbytes))
    router.from_endpoint(driver, [frames.CALL, 0, driver.id, route, 7, "step", 0, content], [])
    ((*_, body),) = sent.frames
    if nbytes == 8:
        assert body == bytes(8)
    else:
        assert "the daemon of node 0 cannot pass it on: [Errno 24] no descriptor is free" in body


@pytest.mark.parametrize(
    ("words", "makes_sense"),
    [
        ([frames.GET, 1, 0, frames.endpoint(0, 0), 7], False),
        ([frames.CALL, 1, 0, frames.route_to([1]), 7, "step", 0, 8], False),
        ([frames.REQUEST, 1, 0, 0, 1, "ScrapeNode", {}], True),
        ([frames.SETTLED, 1, 0, []], True),
        ([frames.HELLO, 1, 0, {}], True),
        ([frames.RESTART, 1, 0], True),
    ],
)
def test_a_descriptor_that_nothing_asked_for_is_closed(router: Router, words: list[Any], makes_sense: bool) -> None:
    driver, _ = attach(router, "driver")
    ours, theirs = os.pipe()
    with nullcontext() if makes_sense else pytest.raises(FrameError, match="makes no sense"):
        router.from_endpoint(driver, words, [theirs])
    os.set_blocking(ours, False)
    try:
        assert os.read(ours, 1) == b""  # its other end is closed
    finally:
        os.close(ours)


def test_the_answers_to_one_call_leave_in_one_write(router: Router) -> None:
    driver, heard = attach(router, "driver")
    workers = [attach(router, "worker")[0] for _ in range(3)]
    route = frames.route_to([worker.id for worker in workers])
    router.from_endpoint(driver, [frames.CALL, 0, driver.id, route, 7, "step", 0, b""], [])
    for slot in (1, 0, 2):
        answer = [frames.REPLY, 0, workers[slot].id, driver.id, 7, slot, int(Status.OK), b"found"]
        router.from_endpoint(workers[slot], answer, [])
    assert (heard.frames, heard.writes) == ([], [[1, 0, 2]])


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"stacks": 7}, 7),
        ({"stacks": 0}, 0),
        ({"stacks": -1}, None),
        ({"stacks": True}, None),
        ({"stacks": "7"}, None),
        ({"stacks": [7]}, None),
        ({"role": "worker"}, None),
        ([["stacks", 7]], None),
        (None, None),
    ],
)
def test_a_workers_hello_names_its_pipe_for_stacks(
    router: Router, facts: Any, expected: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    worker, sent = attach(router, "worker")
    assert not worker.is_known
    router.from_endpoint(worker, [frames.HELLO, 0, 0, facts], [])
    assert worker.is_known
    assert (worker.stacks, type(worker.stacks)) == (expected, type(expected))
    assert sent.frames == []
    assert not caplog.text
