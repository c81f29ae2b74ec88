"""NCCL pairs: calls to CUDA, their streams and order, with recorders."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async._transports.devices.nccl_pair import NcclPair
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer
from rlinf_async.errors import ClosedError

GPU = torch.device("cuda", 0)


class Cuda:
    """The current stream of each thread, and what was done there, in order.

    Attributes:
        has_received, has_sent: it has come to the end of both.
    """

    def __init__(self) -> None:
        self.done: dict[str, list[str]] = {"receive": [], "send": []}
        self.has_received, self.has_sent = threading.Event(), threading.Event()
        self._thread = threading.local()
        self._names = iter(["one", "other"])

    def make(self, device: torch.device) -> str:
        return next(self._names)

    @contextlib.contextmanager
    def enter(self, stream: str) -> Iterator[None]:
        self._thread.current = stream
        yield

    @property
    def current(self) -> str:
        return getattr(self._thread, "current", "default")

    def note(self, what: str) -> None:
        way = threading.current_thread().name.removeprefix("rlinf-nccl-")
        self.done[way].append(f"{what} in {self.current}")
        if way == "send" and what == "synchronize":
            self.has_sent.set()

    # -- a group, and who hears of it -------------------------------------------------------------------------------

    def make_group(self, store: Any, rank: int) -> Any:
        def operation(what: str) -> Any:
            def begin(chunks: Any, peer: int, tag: int) -> Any:
                self.note(what)
                return SimpleNamespace(wait=lambda timeout: self.note("wait"))

            return begin

        return SimpleNamespace(recv=operation("recv"), send=operation("send"), abort=lambda: None)

    def begins(self, pair: Any, receiving: Any) -> int:
        receiving.allocate()
        return 0

    def ready(self, pair: Any, receiving: Any, tag: int, start: int) -> None:
        pair.expect(receiving.number)

    def sends(self, pair: Any, sending: Any) -> None:
        pass

    def arrived(self, pair: Any, receiving: Any) -> None:
        self.note("arrived")
        self.has_received.set()


class One(SendTransfer):
    def chunks(self) -> list[torch.Tensor]:
        return [torch.zeros(1)]


class Other(ReceiveTransfer[torch.Tensor]):
    def allocate(self) -> None:
        self.chunks = [torch.zeros(1)]


def test_each_direction_has_a_stream_of_its_own_so_that_neither_waits_for_the_other_nor_for_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda: Any = Cuda()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", cuda.make)
    monkeypatch.setattr(torch.cuda, "stream", cuda.enter)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: cuda.note("synchronize"))
    )
    pair = NcclPair(cuda, True, GPU, cuda.make_group)
    pair.receive(Other(1, [4]))
    pair.send(One(2, [4]), 0, 0)
    assert cuda.has_received.wait(20)
    assert cuda.has_sent.wait(20)
    pair.close(ClosedError("the test is over"))
    streams = {way: done[0].rpartition(" ")[2] for way, done in cuda.done.items()}
    assert set(streams.values()) == {"one", "other"}
    assert cuda.done == {
        way: [f"{what} in {streams[way]}" for what in (*operations, "synchronize", *after)]
        for way, operations, after in (("receive", ["recv", "wait"], ["arrived"]), ("send", ["send", "wait"], []))
    }
