"""Outbox of a pipe: order and whole messages under concurrent senders and slow readers."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import DeadlineExceeded, PeerLost
from rlinf_async.weights.links import outbox
from rlinf_async.weights.links.outbox import Outbox
from rlinf_async.weights.links.pieces import MOST, Joining, pieces_of
from rlinf_async.weights.links.pipe_mail import PipeMail
from tests._support.recording_listener import Ear
from tests._support.weight_parts import SharedPipeLink

LONG = b"x" * 3_000_000
"""Many times what a pipe takes."""


@settings(derandomize=True, max_examples=30)
@given(sizes=st.lists(st.integers(0, 4 * MOST), max_size=6), lost=st.sets(st.integers(0, 5)))
def test_values_of_any_length_come_together_again_and_one_that_broke_off_is_forgotten(
    sizes: list[int], lost: set[int]
) -> None:
    joining = Joining()
    for number, size in enumerate(sizes):
        pieces = list(pieces_of(["a word", b"y" * size]))
        broken = number in lost
        found = [value for piece in pieces[: -1 if broken else None] for value in joining.take(piece)]
        assert found == ([] if broken else [["a word", b"y" * size]])
        assert all(len(piece) < 2 * MOST for piece in pieces)


def test_the_middle_of_a_word_without_its_beginning_is_refused() -> None:
    _, middle, *_ = pieces_of([LONG])
    with pytest.raises(ValueError, match="whose beginning"):
        Joining().take(middle)


def test_long_words_wait_for_a_late_reader_and_arrive_in_order() -> None:
    ours, theirs = multiprocessing.Pipe()
    link, ear = SharedPipeLink(ours, "policy"), Ear()
    for number in range(5):
        link.send([number, LONG if number % 2 == 0 else b"short"])  # and nobody reads yet
    other = SharedPipeLink(theirs, "policy")
    other.listen(ear)
    ear.until(lambda: len(ear.words) == 5)
    assert [(number, len(body)) for number, body in ear.words] == [
        (number, len(LONG) if number % 2 == 0 else 5) for number in range(5)
    ]
    for end in (link, other, ours, theirs):
        end.close()


def test_what_others_send_meanwhile_is_not_cut_and_cuts_nothing() -> None:
    ours, theirs = multiprocessing.Pipe()
    link = SharedPipeLink(ours, "policy")
    others = [bytes([65 + number]) * 200_000 for number in range(5)]

    def send_others() -> None:
        for other in others:
            ours.send(other)

    sending = threading.Thread(target=send_others)
    link.send(["first", LONG])
    sending.start()
    for number in range(20):
        link.send([number, LONG[:100_000]])
    joining, mail = Joining(), PipeMail(theirs)
    words: list[Any] = []
    found: list[bytes] = []
    while len(words) < 21 or len(found) < len(others):
        assert theirs.poll(10)
        if mail.speaks_words():
            words += [said[0] for *_, said in joining.take(theirs.recv_bytes())]
        else:
            found.append(theirs.recv())
    sending.join()
    assert words == ["first", *range(20)]
    assert found == others
    link.close()
    theirs.close()
    ours.close()


def test_closing_waits_for_nobody_who_does_not_read_and_leaves_no_thread() -> None:
    ours, theirs = multiprocessing.Pipe()
    link = SharedPipeLink(ours, "policy")
    link.send(["long", LONG])
    (writer,) = writers()
    link.close()
    writer.join(30)
    assert not writer.is_alive()
    while theirs.poll(0):  # messages that are whole
        theirs.recv_bytes()
    link = SharedPipeLink(ours, "policy")
    other, ear = SharedPipeLink(theirs, "policy"), Ear()
    other.listen(ear)
    link.send(["again"])
    ear.until(lambda: bool(ear.words))
    assert ear.words == [["again"]]
    for end in (link, other, ours, theirs):
        end.close()


def test_what_was_said_before_the_closing_still_leaves_if_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_PATIENCE", 60.0)
    ours, theirs = multiprocessing.Pipe()
    link, ear = SharedPipeLink(ours, "policy"), Ear()
    link.send(["long", LONG])
    link.close()
    other = SharedPipeLink(theirs, "policy")
    other.listen(ear)
    ear.until(lambda: ear.end is not None)
    assert [words[0] for words in ear.words] == ["long"]
    assert isinstance(ear.end, PeerLost)
    for end in (other, ours, theirs):
        end.close()


def test_words_that_wait_end_with_the_other_end_of_the_pipe() -> None:
    ours, theirs = multiprocessing.Pipe()
    link, ear = SharedPipeLink(ours, "policy"), Ear()
    link.listen(ear)
    link.send(["long", LONG])
    theirs.close()
    ear.until(lambda: ear.end is not None)
    for thread in threading.enumerate():
        if thread.name == "words into a pipe":  # which may hear of it later than the link
            thread.join(30)
    with pytest.raises(PeerLost):
        Outbox.of(ours).say(["more"], "the worker")
    link.close()
    ours.close()


async def test_a_message_that_was_given_up_leaves_whole_or_not_at_all() -> None:
    ours, theirs = multiprocessing.Pipe()
    link, mail = SharedPipeLink(ours, "policy"), PipeMail(ours)
    for _ in range(2):  # the first has begun to leave, the second has not
        with pytest.raises(DeadlineExceeded, match=r"has not read within 0\.1 s"):
            await mail.send((LONG, "update_weights"), 0.1)
    await asyncio.to_thread(theirs.recv)
    link.send(["a word"])
    assert await asyncio.to_thread(theirs.recv_bytes) == next(iter(pieces_of(["policy", link.token, None, ["a word"]])))
    link.close()
    mail.close()
    theirs.close()
    ours.close()


async def test_what_has_begun_to_leave_is_finished_however_late_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_PATIENCE", 0.0)
    ours, theirs = multiprocessing.Pipe()
    mail = PipeMail(ours)
    with pytest.raises(DeadlineExceeded):
        await mail.send((LONG, "update_weights"), 0.1)
    (writer,) = writers()
    await asyncio.to_thread(writer.join, 0.2)  # it waits for a reader that was stopped for so long
    assert writer.is_alive()
    first = asyncio.create_task(asyncio.to_thread(theirs.recv))
    await mail.send((None, "updated"), 20)
    assert await first == (LONG, "update_weights")
    ours.send("something of the owner's")
    assert theirs.recv() == (None, "updated")
    assert theirs.recv() == "something of the owner's"
    mail.close()
    theirs.close()
    ours.close()


async def test_nothing_follows_half_a_message_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_PATIENCE", 0.0)
    ours, theirs = multiprocessing.Pipe()
    mail = PipeMail(ours)
    with pytest.raises(DeadlineExceeded):
        await mail.send((LONG, "update_weights"), 0.1)
    (writer,) = writers()
    mail.close()
    await asyncio.to_thread(writer.join, 30)
    assert not writer.is_alive()
    reason = "did not read a message to its end"
    mail, link = PipeMail(ours), SharedPipeLink(ours, "policy")
    with pytest.raises(PeerLost, match=reason):
        await mail.send((None, "updated"), 0.1)
    with pytest.raises(PeerLost, match=reason):
        link.send(["a word"])
    with pytest.raises(PeerLost, match=reason):
        ours.send("something of the owner's")
    link.close()
    mail.close()
    ours.close()
    with pytest.raises(OSError, match="end of file during message"):
        theirs.recv()
    theirs.close()


def test_a_message_that_nobody_reads_does_not_keep_a_process_from_ending() -> None:
    script = (
        "import asyncio, multiprocessing\n"
        "from rlinf_async.weights.links.pipe_mail import PipeMail\n"
        "ours, theirs = multiprocessing.Pipe()\n"
        "async def main():\n"
        "    await PipeMail(ours).send((bytes(3_000_000), 'update_weights'), 0.1)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=True)
    assert ended.stdout == "DeadlineExceeded\n"


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "words into a pipe"]


def test_a_process_that_is_forked_leaves_what_waits_to_its_parent() -> None:
    ours, theirs = multiprocessing.Pipe()
    link = SharedPipeLink(ours, "policy")
    link.send(["long", LONG])
    raw: Any = socket.socket(fileno=os.dup(ours.fileno()))
    inode = os.fstat(raw.fileno()).st_ino
    raw.close()
    pid = os.fork()
    if pid == 0:
        same = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _inode(fd) == inode]
        os._exit(0 if same == [ours.fileno()] and not Outbox.of(ours)._waiting else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the pipe is open there more than once, or words would leave twice"
    other, ear = SharedPipeLink(theirs, "policy"), Ear()
    other.listen(ear)
    ear.until(lambda: bool(ear.words))
    assert len(ear.words[0][1]) == len(LONG)
    for end in (link, other, ours, theirs):
        end.close()


def _inode(fd: int) -> int:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0
