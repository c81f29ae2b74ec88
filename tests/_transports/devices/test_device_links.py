"""Conformance suite of links between GPUs, on CPU memory with stand-ins for CUDA."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._transports.devices import cuda_ipc, staging
from rlinf_async._transports.devices.cuda_ipc import CudaIpcLink
from rlinf_async._transports.devices.device_memory import IpcHandle
from rlinf_async._transports.devices.nccl_link import NcclLink
from rlinf_async._transports.devices.nccl_pair import make_nccl_group
from rlinf_async._transports.devices.staging import StagedLink
from rlinf_async._transports.link import Post
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work
from tests._support.fake_gpu_memory import CPU, Written, make_gloo_group
from tests._support.linked_pairs import Couple, couple
from tests._support.until import until

MiB = 1 << 20


class SharedMemory:
    """Stands in for CUDA's: a table of the process's own."""

    table: dict[bytes, torch.Tensor] = {}  # noqa: RUF012  # the process's own
    names = itertools.count()

    def export(self, tensor: torch.Tensor) -> IpcHandle:
        name = f"allocation {next(self.names)}".encode()
        self.table[name] = tensor
        return IpcHandle(name, 0, tensor.nbytes)

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        return self.table[handle.allocation]

    def mark(self, device: torch.device) -> Written:
        return Written()

    def close(self) -> None:
        pass


def make_link(kind: str, post: Post, first: bool, address: str) -> Any:
    match kind:
        case "staged":
            return StagedLink(post, first, address, CPU)
        case "nccl":
            return NcclLink(post, first, address, CPU, make_gloo_group)
    return CudaIpcLink(post, first, address, CPU, SharedMemory())


@pytest.fixture(params=["staged", "nccl", "cuda_ipc"])
def links(request: pytest.FixtureRequest) -> Iterator[Couple]:
    with couple(functools.partial(make_link, request.param)) as links:
        yield links


def pattern(nbytes: int, salt: int = 0) -> torch.Tensor:
    return (torch.arange(251, dtype=torch.uint8) + salt).repeat(nbytes // 251 + 1)[:nbytes]


PATIENCE = 20.0
"""Seconds for connections that have to be made anew, each of which may take seconds where the machine is busy."""


def exchange(links: Couple, number: int, nbytes: int = MiB) -> None:
    near, far = pattern(nbytes, 1), pattern(nbytes, 2)
    works: list[Work[Any]] = [
        links.near.send(number, [near]),  # type: ignore[list-item]  # a device link takes tensors
        links.far.send(number, [far]),  # type: ignore[list-item]
    ]
    [to_far], [to_near] = (link.receive(number, [nbytes]).wait(PATIENCE) for link in (links.far, links.near))
    for work in works:
        work.wait(PATIENCE)
    assert torch.equal(to_far, near)  # type: ignore[arg-type]
    assert torch.equal(to_near, far)  # type: ignore[arg-type]


def error_of(work: Work[Any], timeout: float = 1) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one, the caller looks at
        work.wait(timeout)
    return caught.value


def test_tensors_of_every_size_arrive_as_the_receivers_own(links: Any) -> None:
    sizes = [0, 1, 70_000, 0, 5 * MiB, 63]
    tensors = [pattern(size, salt) for salt, size in enumerate(sizes)]
    expected = [tensor.clone() for tensor in tensors]
    sent, received = links.near.send(1, tensors), links.far.receive(1, sizes)
    sent.wait(5)
    for tensor in tensors:
        tensor.zero_()
    got = received.wait(5)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_both_directions_and_either_order(links: Any) -> None:
    exchange(links, 1)
    received = links.far.receive(2, [MiB])
    sent = links.near.send(2, [pattern(MiB)])
    assert torch.equal(received.wait(5)[0], pattern(MiB))
    sent.wait(5)
    exchange(links, 3, 9 * MiB)


@pytest.mark.parametrize("discarding", ["near", "far"])
def test_a_discard_fails_what_is_open_on_both_sides_and_the_next_exchange_works(links: Any, discarding: str) -> None:
    exchange(links, 1)
    links.to_near.hold()
    links.to_far.hold()
    sent, received = links.near.send(2, [pattern(MiB)]), links.far.receive(2, [MiB])
    began = time.monotonic()
    getattr(links, discarding).discard(TimeoutError("too late"))
    links.to_near.go_on()
    links.to_far.go_on()
    ours, theirs = (sent, received) if discarding == "near" else (received, sent)
    assert isinstance(error_of(ours), TimeoutError)
    assert "TimeoutError: too late" in str(error_of(theirs))
    exchange(links, 3)
    assert time.monotonic() - began < 2


def test_one_transfer_is_given_up_and_the_others_arrive(links: Any) -> None:
    exchange(links, 1)
    links.to_near.hold()
    sent = [links.near.send(number, [pattern(MiB, number)]) for number in (2, 3)]
    received = [links.far.receive(number, [MiB]) for number in (2, 3)]
    links.near.discard(TimeoutError("too late"), 2)
    links.near.discard(TimeoutError("of nothing"), 1)
    links.to_near.go_on()
    assert isinstance(error_of(sent[0]), TimeoutError)
    assert "TimeoutError: too late" in str(error_of(received[0], PATIENCE))
    assert torch.equal(received[1].wait(PATIENCE)[0], pattern(MiB, 3))
    sent[1].wait(PATIENCE)


def test_what_one_side_gives_up_before_the_other_asks_fails_there_at_once(links: Any) -> None:
    sent, received = links.near.send(1, [pattern(MiB)]), links.near.receive(1, [MiB])
    links.near.discard(TimeoutError("given up"))
    for work in (sent, received):
        assert isinstance(error_of(work), TimeoutError)
    assert isinstance(error_of(links.far.receive(1, [MiB]), 5), TransferFailed)
    assert isinstance(error_of(links.far.send(1, [pattern(MiB)]), 5), TransferFailed)
    exchange(links, 2)


def test_sizes_that_differ_are_an_error_on_both_sides(links: Any) -> None:
    sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [2 * MiB])
    for work in (sent, received):
        assert isinstance(error_of(work, 5), TransferFailed)
    exchange(links, 2)


@pytest.mark.parametrize("first", ["sender", "receiver"])
@pytest.mark.parametrize(
    ("kind", "free"),
    [("staged", 0), ("staged", 1), ("nccl", 0), ("nccl", 1), ("nccl", 3), ("cuda_ipc", 0), ("cuda_ipc", 1)],
)
def test_a_transfer_for_which_no_thread_can_start_fails_on_both_sides(
    kind: str, free: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        if not next(left, 0):
            raise RuntimeError("can't start new thread")
        begin(thread)

    begin, left = threading.Thread.start, itertools.chain([1] * free)
    with couple(functools.partial(make_link, kind)) as links:
        starts: list[Any] = [
            lambda: links.near.send(1, [pattern(MiB)]),  # type: ignore[list-item]
            lambda: links.far.receive(1, [MiB]),
        ]
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            patch.setattr(Written, "query", lambda _: False)
            works = [one() for one in (starts if first == "sender" else reversed(starts))]
            for work in works:
                assert "can't start new thread" in str(error_of(work, 5))
        exchange(links, 2)


@pytest.mark.parametrize("kind", ["staged", "cuda_ipc"])
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_what_cannot_be_sent_fails_on_both_sides_whoever_comes_first(
    kind: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no handles for expandable segments")

    with couple(functools.partial(make_link, kind)) as links:
        exchange(links, 1)
        if first == "receiver":
            received = links.far.receive(2, [MiB])
        with monkeypatch.context() as patch:
            patch.setattr(staging.pinned, "take", refuse)
            patch.setattr(SharedMemory, "export", refuse)
            sent = links.near.send(2, [pattern(MiB)])  # type: ignore[list-item]
        assert "no handles" in str(error_of(sent))
        if first == "sender":
            until(lambda: any("broken" in facts[0] for facts in links.to_far.heard))
            received = links.far.receive(2, [MiB])
        assert "no handles" in str(error_of(received, 5))
        exchange(links, 3)


def test_a_mapping_that_cannot_be_let_go_of_does_not_stop_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SharedMemory) -> None:
        raise RuntimeError("CUDA does not want to")

    with couple(functools.partial(make_link, "cuda_ipc")) as links, monkeypatch.context() as patch:
        exchange(links, 1)
        patch.setattr(SharedMemory, "close", fail)
        exchange(links, 2)
        exchange(links, 3)


class Writing:
    """A mark in a stream that is still at work."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: Exception | None = None

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        assert self.done.wait(5)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    """The stream of whoever sends, from here on."""
    mark = Writing()
    monkeypatch.setattr(SharedMemory, "mark", lambda *_: mark)
    return mark


def test_memory_is_offered_once_the_senders_stream_has_written_it(writing: Writing) -> None:
    with couple(functools.partial(make_link, "cuda_ipc")) as links:
        tensor = pattern(MiB)
        sent, received = links.near.send(1, [tensor]), links.far.receive(1, [MiB])  # type: ignore[list-item]
        assert not links.to_far.heard
        tensor.fill_(7)
        writing.done.set()
        assert received.wait(5)[0].eq(7).all()  # type: ignore[attr-defined]
        sent.wait(5)


def test_what_is_given_up_before_it_is_written_is_never_offered(writing: Writing) -> None:
    with couple(functools.partial(make_link, "cuda_ipc")) as links:
        sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [MiB])  # type: ignore[list-item]
        links.near.discard(TimeoutError("the sender's deadline"))
        assert isinstance(error_of(sent), TimeoutError)
        assert isinstance(error_of(received, 5), TransferFailed)
        writing.done.set()
        links.near._writing.call(int).result(5)  # type: ignore[attr-defined]
        assert [facts[0] for facts in links.to_far.heard] == ["broken"]


def test_a_stream_that_fails_fails_the_transfer_on_both_sides(writing: Writing) -> None:
    writing.failure = RuntimeError("an illegal memory access was encountered")
    writing.done.set()
    with couple(functools.partial(make_link, "cuda_ipc")) as links:
        sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [MiB])  # type: ignore[list-item]
        assert "illegal memory access" in str(error_of(sent, 5))
        assert "illegal memory access" in str(error_of(received, 5))


class Recorded(SharedMemory):
    """Notes what is asked of it."""

    calls: list[str] = []  # noqa: RUF012  # each test's own

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        self.calls.append("open")
        return super().open(handle, device)

    def close(self) -> None:
        self.calls.append("close")

    @classmethod
    def make_link(cls, post: Post, first: bool, address: str) -> Any:
        def note_and_post(facts: Any) -> None:
            cls.calls.append(facts[0])
            post(facts)

        return CudaIpcLink(note_and_post, first, address, CPU, cls())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In order, what links say, and what they ask of their memory and streams."""
    calls: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            pass

        @contextlib.contextmanager
        def until_done(self) -> Iterator[None]:
            calls.append("enter the stream")
            try:
                yield
            finally:
                calls.append("all is done")

    monkeypatch.setattr(Recorded, "calls", calls)
    monkeypatch.setattr(cuda_ipc, "SideStream", Stream)
    return calls


BEGUN = ["offer", "enter the stream", "open", "open", "all is done", "close"]


def test_the_senders_memory_is_open_for_the_copy_only_and_closed_before_the_sender_may_free_it(
    calls: list[str],
) -> None:
    sizes = [MiB, 0, 5]
    with couple(Recorded.make_link) as links:
        for number in (1, 2):
            received = links.far.receive(number, sizes)
            links.near.send(number, [pattern(size) for size in sizes]).wait(5)  # type: ignore[misc]
            received.wait(5)
            assert calls == [*BEGUN, "received", "kept"]
            calls.clear()


def test_memory_is_closed_also_where_some_of_it_cannot_be_opened(calls: list[str]) -> None:
    with couple(Recorded.make_link) as links:
        links.to_far.hold()
        sent = links.near.send(1, [pattern(MiB), pattern(5)])  # type: ignore[list-item]
        SharedMemory.table.popitem()
        links.to_far.go_on()
        assert isinstance(error_of(links.far.receive(1, [MiB, 5]), 5), KeyError)
        assert isinstance(error_of(sent, 5), TransferFailed)
        assert calls == [*BEGUN, "broken"]


def test_a_copy_counts_only_if_the_sender_had_not_given_up_by_then() -> None:
    with couple(functools.partial(make_link, "cuda_ipc")) as links:
        links.to_near.hold()
        tensor = pattern(MiB)
        sent, received = links.near.send(1, [tensor]), links.far.receive(1, [MiB])  # type: ignore[list-item]
        until(lambda: not links.to_near._posted.empty() or links.far._copied)  # type: ignore[attr-defined]
        links.near.discard(TimeoutError("the sender's deadline"))
        tensor.zero_()
        links.to_near.go_on()
        assert isinstance(error_of(sent), TimeoutError)
        assert isinstance(error_of(received), TransferFailed)


def test_withdrawn_offers_that_nobody_requests_are_forgotten() -> None:
    with couple(functools.partial(make_link, "cuda_ipc")) as links:
        for number in range(3):
            links.near.send(number, [pattern(MiB)])  # type: ignore[list-item]
            links.near.discard(TimeoutError("too late"), number)
        until(lambda: len(links.far._withdrawn) == 3)  # type: ignore[attr-defined]
        exchange(links, 3)
        assert not links.far._withdrawn  # type: ignore[attr-defined]


def test_a_torch_without_nccl_says_so() -> None:
    with contextlib.suppress(ImportError):
        from torch.distributed import ProcessGroupNCCL  # noqa: F401

        pytest.skip("this torch has NCCL")
    with pytest.raises(TransferFailed, match="built for CUDA"):
        make_nccl_group(None, 0)  # type: ignore[arg-type]
