"""Links between two ends: order, closing, leaks."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from rlinf_async.errors import ClosedError, ConfigError, PeerLost, TransferFailed
from tests._support.recording_listener import Ear
from tests._support.weight_parts import Link, LocalLink, PipeLink, SharedPipeLink, Words

Ends = tuple[Link, Link]


@pytest.fixture(params=["local", "pipe"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    if request.param == "local":
        links: Ends = LocalLink.pair()
        yield links
    else:
        pipes = multiprocessing.Pipe()
        yield (PipeLink(pipes[0]), PipeLink(pipes[1]))
        for pipe in pipes:
            pipe.close()


def test_words_arrive_in_order_and_those_from_before_somebody_listened_first(ends: Ends) -> None:
    one, other = ends
    ear = Ear()
    for number in range(50):
        one.send([number, "text", b"bytes", None, [1.5]])
    other.listen(ear)
    for number in range(50, 100):
        one.send([number])
    ear.until(lambda: len(ear.words) == 100)
    assert [words[0] for words in ear.words] == list(range(100))
    assert ear.words[0][1:] == ["text", b"bytes", None, [1.5]]
    for link in ends:
        link.close()


def test_closing_is_heard_after_all_that_was_said_and_may_be_repeated(ends: Ends) -> None:
    one, other = ends
    ear, own = Ear(), Ear()
    one.listen(own)
    one.send(["last"])
    one.close()
    one.close()
    other.listen(ear)
    ear.until(lambda: ear.end is not None)
    assert ear.words == [["last"]]
    assert isinstance(ear.end, PeerLost)
    assert isinstance(own.end, ClosedError)
    with pytest.raises(PeerLost):
        other.send(["too late"])
    with pytest.raises(ClosedError):
        one.send(["too late"])
    late = Ear()
    other.listen(late)
    assert late.end is ear.end
    other.close()


def test_a_link_may_be_closed_by_what_it_hears(ends: Ends) -> None:
    one, other = ends

    class Closing(Ear):
        def hear(self, words: Words) -> None:
            other.close()

    own = Ear()
    one.listen(own)
    other.listen(Closing())
    one.send(["go"])
    own.until(lambda: own.end is not None)
    one.close()


def test_the_pipe_stays_its_owners() -> None:
    ours, theirs = multiprocessing.Pipe()
    link, ear = PipeLink(ours), Ear()
    link.listen(ear)
    link.send(["a word"])
    link.close()
    _, source, target, words = msgpack.unpackb(theirs.recv_bytes())
    assert (target, words) == (None, ["a word"])
    assert msgpack.unpackb(theirs.recv_bytes()) == ["", source, None, None], "its good-bye"
    ours.send("something of the owner's")
    assert theirs.recv() == "something of the owner's"
    ours.close()
    theirs.close()


def test_a_pipe_that_ends_ends_the_link() -> None:
    ours, theirs = multiprocessing.Pipe()
    link, ear = PipeLink(ours, "pid 7"), Ear()
    link.listen(ear)
    theirs.close()
    ear.until(lambda: ear.end is not None)
    assert str(ear.end) == "pid 7 is gone: its end of the pipe is closed"
    link.close()
    ours.close()


def test_what_is_no_message_ends_the_link() -> None:
    ours, theirs = multiprocessing.Pipe()
    link, ear = PipeLink(ours), Ear()
    link.listen(ear)
    theirs.send_bytes(b"\xc1")
    ear.until(lambda: ear.end is not None)
    assert isinstance(ear.end, TransferFailed)
    link.close()
    ours.close()
    theirs.close()


def test_a_pipe_that_nobody_reads_refuses_words_once_many_wait_and_never_blocks() -> None:
    ours, theirs = multiprocessing.Pipe()
    link = PipeLink(ours, "pid 7")

    def fill() -> None:
        for _ in range(100):
            link.send(["a word", b"x" * 1_000_000])

    with pytest.raises(TransferFailed, match="pid 7 does not read"):
        fill()
    link.close()
    ours.close()
    theirs.close()


def test_a_pipe_that_goes_one_way_is_refused() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with pytest.raises(ConfigError, match="one way"):
        PipeLink(ours)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("make", [PipeLink, lambda pipe: SharedPipeLink(pipe, "policy")], ids=["own", "shared"])
def test_a_word_that_stops_in_the_middle_does_not_hold_up_the_closing(make: Any) -> None:
    ours, theirs = multiprocessing.Pipe()
    link, ear = make(ours), Ear()
    link.listen(ear)
    raw: Any = socket.socket(fileno=theirs.fileno())
    raw.send(b"\0\0\0\x10half")
    link.close()  # its thread ends with the pipe
    raw.detach()
    theirs.close()
    ours.close()
