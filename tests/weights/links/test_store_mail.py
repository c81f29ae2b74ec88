"""Messages by a torch store: only participants of a group's creation are awaited."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]  # torch does not list them

from rlinf_async._core import frames
from rlinf_async.errors import ClosedError, RemoteError
from tests._support.weight_parts import StoreMail

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


def begin_to_send(threads: ThreadPoolExecutor, sender: StoreMail, stop: threading.Event) -> Future[bytes]:
    return threads.submit(sender.send, HEAD, VALUES, 30.0, stop)


def receive(receiver: StoreMail) -> None:
    head, found = receiver.receive(threading.Event())
    assert head["version"] == 1
    assert torch.equal(found, VALUES)


def test_a_receiver_that_comes_after_its_sender_has_given_up_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rlinf_async.weights.links.store_mail._MAX_CONNECT_S", 600.0)
    taken, goes_on, stop = threading.Event(), threading.Event(), threading.Event()
    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(2) as threads:
        connect = receiver._connect

        def connect_late(end: float) -> None:
            taken.set()
            assert goes_on.wait(30)
            connect(end)

        monkeypatch.setattr(receiver, "_connect", connect_late)
        sending = begin_to_send(threads, sender, stop)
        receiving = threads.submit(receive, receiver)
        assert taken.wait(30)
        stop.set()
        sender.interrupt(stop)
        with pytest.raises(ClosedError, match="message 1 to NODE_1 was given up"):
            sending.result(30)
        goes_on.set()
        sending = begin_to_send(threads, sender, threading.Event())
        receiving.result(30)
        receiver.answer(b"updated")
        assert sending.result(30) == b"updated"
    assert "version 1 of 'policy' has not come: its sender has given up: message 1 to NODE_1" in caplog.text


def test_a_receiver_that_is_given_up_waits_for_no_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.weights.links.store_mail._MAX_CONNECT_S", 600.0)
    stop, facts = threading.Event(), {"generation": "gone", "nbytes": 64, "timeout": 600.0}
    with both_ends() as (_, receiver, store), ThreadPoolExecutor(1) as threads:
        store.set("NODE_1_in/1", frames.pack({**HEAD, **facts}))
        receiving = threads.submit(receiver.receive, stop)
        store.wait(["NODE_1_at/gone/0/1"])
        stop.set()
        receiver.interrupt(stop)
        with pytest.raises(ClosedError):
            receiving.result(30)


@pytest.mark.parametrize("is_first", [True, False])
def test_why_a_receiver_has_no_memory_for_a_message_its_sender_hears(is_first: bool) -> None:
    """Also while it waits for a connection, and one that is there ends with it."""
    empty = torch.empty

    def fail(*args: Any, **options: Any) -> Any:
        if options.get("device") is None:
            return empty(*args, **options)
        raise MemoryError("there is none")

    def deliver(threads: ThreadPoolExecutor) -> None:
        sending = begin_to_send(threads, sender, threading.Event())
        receive(receiver)
        receiver.answer(b"updated")
        assert sending.result(20) == b"updated"

    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(1) as threads:
        if not is_first:
            deliver(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "empty", fail)
            sending = begin_to_send(threads, sender, threading.Event())
            with pytest.raises(MemoryError):
                receiver.receive(threading.Event())
            with pytest.raises(RemoteError, match="MemoryError: there is none"):
                sending.result(20)
        deliver(threads)


def test_a_receiver_that_leaves_right_after_its_answer_has_answered() -> None:
    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(1) as threads:
        for _ in range(20):
            sending = begin_to_send(threads, sender, threading.Event())
            receive(receiver)
            receiver.answer(b"updated" * 1000)
            receiver.part()
            assert sending.result(20) == b"updated" * 1000
            sender.part()


def test_a_message_that_is_given_up_when_it_has_been_answered_does_not_cost_the_next_one() -> None:
    def take() -> None:
        receive(receiver)
        receiver.answer(b"updated")

    with both_ends() as (sender, receiver, _):
        for _ in range(2):
            threading.Thread(target=take, daemon=True).start()
            stop = threading.Event()
            assert sender.send(HEAD, VALUES, 20.0, stop) == b"updated"
            stop.set()
            sender.interrupt(stop)


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
        waiting = threads.submit(receiver._next_head)
        try:
            assert waiting.result(10) == HEAD
        finally:
            store.set("NODE_1_in/1", b"closed")


@pytest.mark.parametrize("timeout", [math.inf, 1e10])
def test_a_timeout_may_be_endless(timeout: float) -> None:
    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(1) as threads:
        sending = threads.submit(sender.send, HEAD, VALUES, timeout, threading.Event())
        receive(receiver)
        receiver.answer(b"updated")
        assert sending.result(30) == b"updated"


def test_a_message_that_cannot_be_written_does_not_cost_the_next_one() -> None:
    with both_ends() as (sender, receiver, _), ThreadPoolExecutor(2) as threads:
        for is_writable in (True, False, True):
            if not is_writable:
                with pytest.raises(OverflowError):
                    sender.send(HEAD | {"version": 1 << 64}, VALUES, 5.0, threading.Event())
                continue
            sending = threads.submit(sender.send, HEAD, VALUES, 5.0, threading.Event())
            receive(receiver)
            receiver.answer(b"updated")
            assert sending.result(30) == b"updated"
