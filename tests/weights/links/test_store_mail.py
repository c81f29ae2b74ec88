"""Messages by a torch store: only participants of a group's creation are awaited."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]  # torch does not list them

from rlinf_async._core import frames
from rlinf_async.errors import ClosedError, PeerLost
from rlinf_async.weights.links.store_mail import StoreMail

HEAD = {"model_id": "policy", "version": 1}
VALUES = torch.arange(64, dtype=torch.uint8)


@contextlib.contextmanager
def both_ends() -> Iterator[tuple[StoreMail, StoreMail, Any]]:
    """The sender's and the receiver's, and their store; pytest would keep what a fixture brings past the leak check."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sender, receiver = StoreMail(store, 1, True, "gloo"), StoreMail(store, 1, False, "gloo")
    try:
        yield sender, receiver, store
    finally:
        sender.part()
        receiver.part()


def sent(sender: StoreMail, given_up: threading.Event) -> int:
    return sender.send(HEAD, VALUES, 30.0, True, given_up)


def test_a_receiver_that_comes_after_its_sender_has_given_up_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.weights.links.store_mail._CONNECTING", 600.0)
    given_up = threading.Event()
    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(2) as threads:
        sending = threads.submit(sent, sender, given_up)
        head = receiver.next_head()
        assert head is not None
        given_up.set()
        sender.interrupt()
        with pytest.raises(ClosedError, match="message 1 to NODE_1 was given up"):
            sending.result(30)
        with pytest.raises(PeerLost, match="its sender has given up: message 1 to NODE_1"):
            threads.submit(receiver.receive, head, 600.0, threading.Event()).result(30)
        receiver.answer(b"failed ")

        sending = threads.submit(sent, sender, threading.Event())
        head = receiver.next_head()
        assert head is not None
        assert torch.equal(receiver.receive(head, 30.0, threading.Event()), VALUES)
        assert sending.result(30) == 2


def test_a_receiver_that_is_given_up_waits_for_no_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.weights.links.store_mail._CONNECTING", 600.0)
    given_up = threading.Event()
    head = {**HEAD, "generation": "of a sender that is gone", "nbytes": 64}
    with both_ends() as (_, receiver, store), ThreadPoolExecutor(1) as threads:
        receiving = threads.submit(receiver.receive, head, 600.0, given_up)
        store.wait(["NODE_1_here/of a sender that is gone"])
        given_up.set()
        receiver.interrupt()
        with pytest.raises(ClosedError):
            receiving.result(30)


@pytest.mark.parametrize("is_first", [True, False])
def test_why_a_receiver_has_no_memory_for_a_message_its_sender_hears(is_first: bool) -> None:
    """Also while it waits for a connection, and one that is there ends with it."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError("there is none")

    def deliver(threads: ThreadPoolExecutor, answer: bytes) -> bytes:
        sending = threads.submit(sent, sender, threading.Event())
        head = receiver.next_head()
        assert head is not None
        if answer == b"updated":
            assert torch.equal(receiver.receive(head, 30.0, threading.Event()), VALUES)
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "empty", fail)
                with pytest.raises(MemoryError):
                    receiver.receive(head, 30.0, threading.Event())
        receiver.answer(answer)
        return sender.wait_answer(sending.result(20), 20.0)

    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(1) as threads:
        if not is_first:
            assert deliver(threads, b"updated") == b"updated"
        assert deliver(threads, b"failed: no memory") == b"failed: no memory"
        assert deliver(threads, b"updated") == b"updated"


class Late:
    """A store that says nothing has come at the very moment in which something does."""

    def __init__(self, store: Any, comes: Any) -> None:
        self._store = store
        self._comes = comes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clone(self) -> Any:
        return self

    def wait(self, keys: list[str], timeout: Any) -> None:
        if self._comes is not None:
            comes, self._comes = self._comes, None
            comes()
            raise DistStoreError("nothing")
        self._store.wait(keys, timeout)


def test_a_message_that_comes_just_as_the_wait_for_it_is_over_is_not_lost() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    late = Late(store, lambda: store.set("NODE_1_in/1", frames.pack(HEAD)))
    with ThreadPoolExecutor(1) as threads:
        receiver = StoreMail(late, 1, False, "gloo")
        waiting = threads.submit(receiver.next_head)
        try:
            assert waiting.result(10) == HEAD
        finally:
            store.set("NODE_1_in/1", b"closed")
