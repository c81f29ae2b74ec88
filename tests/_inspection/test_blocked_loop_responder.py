"""A thread that answers for a blocked loop: for each byte, until it is closed, and in no forked child."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator

import pytest

from rlinf_async._inspection.blocked_loop_responder import BlockedLoopResponder
from tests._support.forked_children import exit_code, forked

NAME = "rlinf-responder"


@pytest.fixture
def answers() -> queue.Queue[str]:
    return queue.Queue()


@pytest.fixture
def responder(answers: queue.Queue[str]) -> Iterator[BlockedLoopResponder]:
    responder = BlockedLoopResponder(lambda: answers.put(threading.current_thread().name))
    yield responder
    responder.close()


def ended() -> bool:
    found = [thread for thread in threading.enumerate() if thread.name == NAME]
    for thread in found:
        thread.join(10)
    return not any(thread.is_alive() for thread in found)


def test_each_byte_is_answered_by_a_thread(responder: BlockedLoopResponder, answers: queue.Queue[str]) -> None:
    for _ in range(2):
        os.write(responder.fd, b"x")
        assert answers.get(timeout=10) == NAME


def test_closed_it_ends_without_an_answer_and_leaves_no_descriptor(
    responder: BlockedLoopResponder, answers: queue.Queue[str]
) -> None:
    fds = (responder.fd, responder._read_fd)
    responder.close()
    responder.close()
    assert ended()
    assert answers.empty()
    assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)


def test_it_ends_though_a_child_has_a_copy_of_its_pipe(answers: queue.Queue[str]) -> None:
    responder = BlockedLoopResponder(lambda: None)
    copy = os.dup(responder.fd)
    try:
        responder.close()
        assert ended()
    finally:
        os.close(copy)


def test_a_forked_process_has_neither_end(responder: BlockedLoopResponder) -> None:
    fds = (responder.fd, responder._read_fd)

    def look() -> None:
        assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)

    with forked(look) as child:
        assert exit_code(child) == 0
    assert all(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)
