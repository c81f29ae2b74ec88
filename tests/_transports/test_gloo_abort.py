"""Ending of Gloo's connections, and of no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, ProcessGroupGloo

from rlinf_async._transports.gloo_abort import end_connections
from rlinf_async._transports.tcp_connections import TcpConnection, is_named_in
from tests._transports.test_tcp_connections import connected

Groups = list[Any]


def make() -> tuple[Any, Groups]:
    """The two ends of a process group, in two threads of this process."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda rank: ProcessGroupGloo(store, rank, 2, timedelta(seconds=20)), range(2))
        return store, list(ends)


@pytest.fixture
def groups() -> Iterator[Groups]:
    _, groups = make()
    yield groups
    groups.clear()


def test_an_operation_that_pends_ends_with_an_error(groups: Groups) -> None:
    work = groups[0].recv([torch.zeros(1)], 1, 0)
    assert end_connections() == 1  # the other end has ended with it
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        work.wait()


def test_a_thread_whose_name_is_no_text_is_no_obstacle(groups: Groups) -> None:
    named, over = threading.Event(), threading.Event()

    def live() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(b"\xd0")
        named.set()
        over.wait(20)

    thread = threading.Thread(target=live)
    thread.start()
    named.wait(20)
    try:
        assert end_connections() == 1
    finally:
        over.set()
        thread.join()


def test_other_connections_and_listeners_are_left_alone(groups: Groups) -> None:
    with connected() as [(near, far)]:
        assert end_connections() == 1  # the other end has ended with it
        near.send(b"x")
        assert far.recv(1) == b"x"
    assert end_connections() == 0


def test_connections_that_this_framework_has_made_are_left_alone(groups: Groups) -> None:
    store, pair = make()
    names = [store.get(f"0/{rank}") for rank in range(2)]
    connection = TcpConnection.find(lambda near, far: is_named_in(names[0], near) or is_named_in(names[1], near))
    assert connection is not None
    other = TcpConnection.find(lambda near, far: (near, far) == (connection.far, connection.near))
    assert other is not None
    assert end_connections() == 1  # the other end has ended with it
    tensor = torch.zeros(1)
    work = pair[0].recv([tensor], 1, 0)
    thread = threading.Thread(target=lambda: pair[1].send([torch.ones(1)], 0, 0).wait())
    thread.start()
    work.wait()
    thread.join()
    assert tensor.item() == 1
    connection.end()
    other.end()
