"""Successive links over one pipe: messages of closed ones are dropped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async.errors import ClosedError, PeerLost
from rlinf_async.weights.links.pieces import pieces_of
from tests._support.recording_listener import Ear
from tests._support.weight_parts import Link, PipeLink, SharedPipeLink, Words

Make = Callable[[Any], Link]
Pipes = tuple[Any, Any]

LONG = b"x" * 60_000


def shared(pipe: Any) -> Link:
    return SharedPipeLink(pipe, "policy")


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def heard_by(link: Link) -> Ear:
    ear = Ear()
    link.listen(ear)
    return ear


def hears(ear: Ear, *words: Words) -> None:
    ear.until(lambda: len(ear.words) >= len(words))
    assert ear.words == list(words)
    assert ear.end is None


@pytest.mark.parametrize("make", [PipeLink, shared], ids=["own", "shared"])
@pytest.mark.parametrize("order", ["one first", "the other first", "both at once"])
def test_both_sides_may_close_and_make_new_links_again_and_again(pipes: Pipes, make: Make, order: str) -> None:
    for number in range(3):
        one, other = make(pipes[0]), make(pipes[1])
        one_ear, other_ear = heard_by(one), heard_by(other)
        one.send(["hello", number])
        hears(other_ear, ["hello", number])
        other.send(["ready", number])
        hears(one_ear, ["ready", number])
        if order == "both at once":
            both = threading.Barrier(2)
            closing = threading.Thread(target=lambda both=both, other=other: (both.wait(10), other.close()))
            closing.start()
            both.wait(10)
            one.close()
            closing.join(10)
        else:
            first, last, ear = (one, other, other_ear) if order == "one first" else (other, one, one_ear)
            first.close()
            ear.until(lambda ear=ear: ear.end is not None)
            assert isinstance(ear.end, PeerLost)
            last.close()


@pytest.mark.parametrize("make", [PipeLink, shared], ids=["own", "shared"])
def test_what_a_new_link_says_before_the_other_side_has_closed_its_own_is_for_the_next_one_there(
    pipes: Pipes, make: Make
) -> None:
    one, other = make(pipes[0]), make(pipes[1])
    ear = heard_by(other)
    one.send(["old"])
    hears(ear, ["old"])
    one.close()
    one = make(pipes[0])
    one.send(["new"])
    ear.until(lambda: ear.end is not None)
    other.close()
    other = make(pipes[1])
    hears(heard_by(other), ["new"])
    assert ear.words == [["old"]]
    one.close()
    other.close()


@pytest.mark.parametrize("make", [PipeLink, shared], ids=["own", "shared"])
def test_a_late_link_hears_nothing_of_one_that_was_closed_and_made_anew_before_it_came(
    pipes: Pipes, make: Make
) -> None:
    for word in ("given up", "given up again", "here"):
        one = make(pipes[0])
        one.send([word])
        if word != "here":
            one.close()
    other = make(pipes[1])
    ear = heard_by(other)
    hears(ear, ["here"])
    other.send(["ready"])
    hears(heard_by(one), ["ready"])
    assert (one.error, other.error) == (None, None)
    one.close()
    other.close()


def test_words_for_a_model_that_comes_later_wait_although_all_links_are_closed_meanwhile(pipes: Pipes) -> None:
    one, policy, critic = SharedPipeLink(pipes[0], "policy"), shared(pipes[1]), SharedPipeLink(pipes[0], "critic")
    critic.send(["for the critic"])
    one.send(["for the policy"])
    hears(heard_by(policy), ["for the policy"])  # and what was said before that has been read
    policy.close()
    late = SharedPipeLink(pipes[1], "critic")
    hears(heard_by(late), ["for the critic"])
    for link in (one, critic, late):
        link.close()


def test_a_word_of_which_a_link_has_read_the_beginning_is_heard_by_the_next_one(pipes: Pipes) -> None:
    ours, theirs = pipes
    first, *rest = pieces_of(["policy", b"somebody", None, ["a word", LONG]])
    link = shared(ours)
    theirs.send_bytes(first)
    link.close()
    link = shared(ours)
    for piece in rest:
        theirs.send_bytes(piece)
    hears(heard_by(link), ["a word", LONG])
    link.close()


def test_links_of_other_models_go_on_over_the_pipe(pipes: Pipes) -> None:
    stays, stays_there = (SharedPipeLink(pipe, "critic") for pipe in pipes)
    ear = heard_by(stays_there)
    for number in range(3):
        one, other = map(shared, pipes)
        one.send([number])
        hears(heard_by(other), [number])
        one.close()
        other.close()
        stays.send([number])
    hears(ear, [0], [1], [2])
    stays.close()
    stays_there.close()


def test_a_link_that_nobody_knows_of_says_no_good_bye(pipes: Pipes) -> None:
    shared(pipes[0]).close()
    pipes[0].send("something of the owner's")
    assert pipes[1].recv() == "something of the owner's"


@pytest.mark.parametrize("make", [PipeLink, shared], ids=["own", "shared"])
def test_a_listener_that_raises_ends_its_link_and_both_sides_are_told(
    pipes: Pipes, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Ear):
        def hear(self, words: Words) -> None:
            raise KeyError("cannot hear")

    one, other = make(pipes[0]), make(pipes[1])
    broken, ear = Broken(), heard_by(one)
    other.listen(broken)
    one.send(["a word"])
    broken.until(lambda: broken.end is not None)
    assert isinstance(broken.end, KeyError)
    assert other.error is broken.end
    ear.until(lambda: ear.end is not None)
    assert isinstance(ear.end, PeerLost)
    assert "cannot hear" in caplog.text
    one.close()
    other.close()


def test_a_listener_that_raises_is_no_concern_of_other_models(pipes: Pipes, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Ear):
        def hear(self, words: Words) -> None:
            raise KeyError("cannot hear")

    links = [SharedPipeLink(pipe, name) for name in ("policy", "critic") for pipe in pipes]
    policy, policy_there, critic, critic_there = links
    broken, ear = Broken(), heard_by(critic_there)
    policy_there.listen(broken)
    policy.send(["a word"])
    broken.until(lambda: broken.end is not None)
    critic.send(["another"])
    hears(ear, ["another"])
    assert "cannot hear" in caplog.text
    for link in links:
        link.close()


@pytest.mark.parametrize("make", [PipeLink, shared], ids=["own", "shared"])
def test_a_process_that_is_forked_closes_its_copy_and_its_parents_link_goes_on(pipes: Pipes, make: Make) -> None:
    one, other = make(pipes[0]), make(pipes[1])
    one_ear, other_ear = heard_by(one), heard_by(other)
    one.send(["before"])
    hears(other_ear, ["before"])
    other.send(["ready"])
    hears(one_ear, ["ready"])
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        told = 0
        try:
            one.send(["from the child"])
        except ClosedError as error:
            told = "belongs to the process that forked" in str(error)
        finally:
            one.close()
            other.close()
            watched = sum("eventpoll" in name for name in open_files())
            os._exit(0 if told and not watched else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    one.send(["after"])
    hears(other_ear, ["before"], ["after"])
    other.send(["ready again"])
    hears(one_ear, ["ready"], ["ready again"])
    one.close()
    other.close()


def open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # that of this listing
            pass
