"""Slots of a machine's host: versions that land, are passed on, and make room for others."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._core.failures import unpack_error
from rlinf_async._messaging.state.relay_plan import BRING, LANDED, PASS, ROOM, STUCK, WHOLE
from rlinf_async.errors import ClosedError
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.memory import slot
from rlinf_async.weights.plane.host_memory import HostMemory
from rlinf_async.work import Work
from tests._support.simulated_remote_nodes import Sent

MANIFEST = Manifest.of(ParamTree.of({"a": torch.zeros(10, dtype=torch.uint8)}))
SIZES = [4, 4, 2]
SOURCE, NEXT = ["rollout", 0], ["rollout", 2]


class Link:
    """To a sender; what is said and sent is noted."""

    def __init__(self) -> None:
        self.received: list[tuple[torch.Tensor, Sent]] = []
        self.sent: list[Sent] = []
        self.said: list[list[Any]] = []
        self.has_said = threading.Condition()

    def receive_tensor(self, tensor: torch.Tensor, line: int, sender: Any = None) -> Work[None]:
        self.received.append((tensor, Sent()))
        return self.received[-1][1]

    def send_tensor(self, tensor: torch.Tensor, line: int, receiver: Any = None) -> Work[None]:
        self.sent.append(Sent())
        return self.sent[-1]

    def later(self, seconds: float, callback: Any) -> None: ...

    def send(self, words: list[Any]) -> None:
        with self.has_said:
            self.said.append(words)
            self.has_said.notify_all()

    def wait_for(self, word: str, count: int = 1) -> list[Any]:
        with self.has_said:
            assert self.has_said.wait_for(lambda: sum(words[0] == word for words in self.said) >= count, 20)
            return [words for words in self.said if words[0] == word][-1]


@pytest.fixture
def link() -> Any:
    return Link()


@pytest.fixture
def memory(link: Any) -> Iterator[HostMemory]:
    memory = HostMemory(link, MANIFEST.to_bytes(), 0, 2, 7, "test")
    yield memory
    memory.close().wait(20)
    link.received.clear()  # which keeps the memory, as do the tracebacks of errors
    link.sent.clear()


def receive(memory: HostMemory, link: Link, version: int) -> Any:
    """All of a version; returns where it is."""
    memory.host.on_message(BRING, version, SIZES, SOURCE, 20.0)
    link.wait_for(ROOM, version)
    for _, work in link.received[-len(SIZES) :]:
        work._settle()
    memory.host.on_message(WHOLE, version, b"")
    said = link.wait_for(LANDED, version)
    assert said[1:3] == [version, None]
    assert said[4] == 7
    return said[3]


def test_memory_that_was_lacking_for_one_version_is_there_for_the_next(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(slot, "allocate_segment", refuse)
        refused = HostMemory(link, MANIFEST.to_bytes(), 0, 2, 7, "test")
        refused.host.on_message(BRING, 1, SIZES, SOURCE, 20.0)
        said = link.wait_for(LANDED)
    assert "Too many open files" in str(unpack_error(said[2])), "the trainer hears why"
    link.said.clear()
    assert receive(refused, link, 1)
    refused.close().wait(20)
    link.received.clear()


def test_no_other_version_comes_into_memory_that_is_still_being_passed_on(memory: HostMemory, link: Link) -> None:
    first = receive(memory, link, 1)
    memory.host.on_message(PASS, 1, NEXT, 9)
    assert len(link.sent) == len(SIZES), "it is all here"
    for work in link.sent:
        work._lose_interest = lambda: None  # type: ignore[method-assign]  # it goes on leaving
    assert [receive(memory, link, version) for version in (2, 3)].count(first) == 0
    for work in link.sent:
        work._settle()
    assert memory._store is not None
    assert not any(slot.is_pinned for slot in memory._store._slots)


def test_the_next_version_ends_what_was_passed_on_of_the_last(memory: HostMemory, link: Link) -> None:
    receive(memory, link, 1)
    memory.host.on_message(PASS, 1, NEXT, 9)
    receive(memory, link, 2)
    assert all(work.done() for work in link.sent)
    assert STUCK not in [words[0] for words in link.said]


def test_memory_that_is_closed_while_a_version_comes_is_let_go_of_and_nothing_is_said(
    memory: HostMemory, link: Link
) -> None:
    memory.host.on_message(BRING, 1, SIZES)
    link.wait_for(ROOM)
    memory.close().wait(20)
    assert memory._store is None
    assert all(work.done() for _, work in link.received)
    with pytest.raises(ClosedError):
        link.received[0][1]._result()
    memory.host.on_message(BRING, 2, SIZES)
    memory.close().wait(20)
    assert [words[0] for words in link.said] == [ROOM]
