"""Notices and TorchRL's messages in a user's pipe: what others send stays in it, whole."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import multiprocessing.reduction
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async.errors import ConfigError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.pipe_mail import UPDATE
from tests._support.weight_parts import Notice, PipeMail

Pipes = tuple[Any, Any]

LONG = b"x" * 3_000_000
"""Many times what a pipe takes."""


def notice(version: int, model_id: str = "policy") -> Notice:
    return Notice(b"\0nobody", 1, model_id, version)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def test_a_notice_is_an_ordinary_message_to_whoever_reads_the_pipe(pipes: Pipes) -> None:
    assert PipeMail.of(pipes[0]).post(notice(7), UPDATE)
    (model_id, found), text = pipes[1].recv()
    assert (model_id, found, text) == ("policy", notice(7), UPDATE)


@pytest.mark.parametrize("stranger", [(None, "continue"), ({"reward": 1.0}, "rollout"), b"bytes", "x" * 100_000])
async def test_a_message_of_others_stays_wherever_it_is_and_is_waited_behind(pipes: Pipes, stranger: Any) -> None:
    sending, receiving = map(PipeMail.of, pipes)
    assert sending.post(notice(1), UPDATE)
    writing = threading.Thread(target=pipes[0].send, args=(stranger,))
    writing.start()
    while (found := receiving.take_notice("policy")) is None:
        await asyncio.sleep(0)
    assert found == notice(1)
    assert await receiving.wait(10)
    for _ in range(3):
        assert receiving.take_notice("policy") is None
        assert not receiving.take((None, "registered"))
    assert pipes[1].recv() == stranger
    writing.join(10)
    assert sending.post(notice(2), UPDATE)
    assert receiving.take_notice("policy") == notice(2)


def test_notices_of_another_model_are_kept_for_it_and_the_last_of_each_counts(pipes: Pipes) -> None:
    sending, receiving = map(PipeMail.of, pipes)
    assert PipeMail.of(pipes[1]) is receiving, "all models that share the pipe have one"
    for version, model_id in ((1, "actor"), (1, "policy"), (2, "actor"), (2, "policy")):
        assert sending.post(notice(version, model_id), UPDATE)
    assert receiving.take_notice("policy") == notice(2)
    assert receiving.notices == {"actor": notice(2, "actor")}
    assert receiving.take_notice("actor") == notice(2, "actor")
    assert receiving.take_notice("actor") is None


def test_only_the_very_answer_that_is_waited_for_is_taken(pipes: Pipes) -> None:
    mail = PipeMail.of(pipes[0])
    for message in ((None, "registered!"), (1, "registered"), (None, "registered")):
        pipes[1].send(message)
    for message in ((None, "registered!"), (1, "registered")):
        assert not mail.take((None, "registered"))
        assert pipes[0].recv() == message
    assert mail.take((None, "registered"))
    assert not pipes[0].poll(0)


def test_a_look_into_the_pipe_takes_no_descriptor_and_leaves_it_blocking(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, "no descriptor is free")))
    socket.setdefaulttimeout(10)
    try:
        assert PipeMail.of(pipes[0]).take_notice("policy") is None
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(pipes[0].fileno())
    assert PipeMail.of(pipes[1]).post(notice(1), UPDATE)
    assert PipeMail.of(pipes[0]).take_notice("policy") == notice(1)


async def test_a_full_pipe_takes_no_notice_until_it_is_read(pipes: Pipes) -> None:
    mail = PipeMail.of(pipes[0])
    count = 0
    while mail.post(notice(count), UPDATE):
        count += 1
    assert not mail.is_all_read()
    looked = asyncio.Event()
    stop = mail.watch(lambda: bool(looked.set()))
    for expected in range(count):
        assert pipes[1].recv()[0] == ("policy", notice(expected))
    async with asyncio.timeout(10):
        await looked.wait()
    stop()
    assert mail.is_all_read()
    assert mail.post(notice(count), UPDATE)


async def test_a_watch_is_woken_by_what_comes_and_not_by_what_lies_there(pipes: Pipes) -> None:
    mail, looks = PipeMail.of(pipes[1]), 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return True

    pipes[0].send((None, "continue"))
    stop = mail.watch(look)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert looks == 1
    pipes[0].send((None, "continue"))
    while looks < 2:
        await asyncio.sleep(0)
    stop()
    stop()
    pipes[0].send((None, "continue"))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert looks == 2


async def test_the_end_of_the_pipe_is_told_whatever_is_left_in_it(pipes: Pipes) -> None:
    ours, theirs = PipeMail.of(pipes[0]), PipeMail.of(pipes[1])
    assert ours.post(notice(1), UPDATE)
    pipes[1].send("something of the owner's")
    pipes[0].send("something of the owner's")
    pipes[0].close()
    with pytest.raises(PeerLost):
        theirs.check()
    assert theirs.take_notice("policy") == notice(1), "said before the end"
    assert pipes[1].recv() == "something of the owner's"
    with pytest.raises(PeerLost):
        theirs.take_notice("policy")
    with pytest.raises(PeerLost):
        theirs.post(notice(1), UPDATE)
    with pytest.raises(PeerLost):
        await theirs.send((None, "updated"), 1.0)


async def test_a_long_message_that_is_given_up_leaves_whole_or_not_at_all_and_what_follows_stays_behind_it(
    pipes: Pipes,
) -> None:
    mail = PipeMail.of(pipes[0])
    for _ in range(2):  # the first has begun to leave, the second has not
        with pytest.raises(DeadlineExceeded, match=r"has not read within 0\.1 s"):
            await mail.send((LONG, UPDATE), 0.1)
    assert not mail.post(notice(1), UPDATE), "there is no room"
    following = asyncio.create_task(mail.send((None, "updated"), 20))
    assert await asyncio.to_thread(pipes[1].recv) == (LONG, UPDATE)
    await following
    assert pipes[1].recv() == (None, "updated")
    assert not pipes[1].poll(0)


async def test_a_long_message_is_received_while_it_comes(pipes: Pipes) -> None:
    sending, receiving = map(PipeMail.of, pipes)
    work = asyncio.create_task(sending.send((LONG, UPDATE), 20))
    assert await receiving.receive(20) == (LONG, UPDATE)
    await work


def test_a_message_that_nobody_reads_does_not_keep_a_process_from_ending() -> None:
    script = (
        "import asyncio, multiprocessing\n"
        "from rlinf_async.weights.links.pipe_mail import PipeMail\n"
        "ours, theirs = multiprocessing.Pipe()\n"
        "async def main():\n"
        "    await PipeMail.of(ours).send((bytes(3_000_000), 'update_weights'), 0.1)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=True)
    assert ended.stdout == "DeadlineExceeded\n"


def test_a_pipe_that_goes_one_way_is_refused() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with ours, theirs, pytest.raises(ConfigError, match="one way"):
        PipeMail.of(ours)


async def test_a_message_whose_receive_is_cancelled_half_way_comes_with_the_next(pipes: Pipes) -> None:
    mail = PipeMail.of(pipes[1])
    whole = bytes(multiprocessing.reduction.ForkingPickler.dumps(("weights", UPDATE)))
    framed = len(whole).to_bytes(4, "big") + whole
    os.write(pipes[0].fileno(), framed[:6])
    receiving = asyncio.create_task(mail.receive(10))
    while mail._pipe.poll(0):  # its beginning is there until the thread has it
        await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.sleep(0)
    os.write(pipes[0].fileno(), framed[6:])
    with pytest.raises(asyncio.CancelledError):
        await receiving
    pipes[0].send((None, "next"))
    assert [await mail.receive(5), await mail.receive(5)] == [("weights", UPDATE), (None, "next")]
