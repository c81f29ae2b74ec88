"""Links over private sockets: deaths, heirs, forks, long words, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest

from rlinf_async._wire import local_socket
from rlinf_async.errors import AuthError, ClosedError, ConfigError, ForkedProcessError, PeerLost, TransferFailed
from rlinf_async.weights.links import socket_link
from tests._support import leaks
from tests._support.forked_children import exit_code, forked
from tests._support.recording_listener import Ear
from tests._support.socket_links import joining, pair
from tests._support.weight_parts import LOOP, OWN, LinkMessage, Notice, SocketLink

LONG = b"x" * 9_000_000
"""More than a frame holds, and many times what a socket does."""


def heard_by(link: SocketLink) -> Ear:
    ear = Ear()
    link.listen(ear)
    return ear


# -- meeting --------------------------------------------------------------------------------------------------------


def test_words_of_any_length_arrive_whole_and_in_order_whoever_says_them() -> None:
    one, other = pair()
    ear = heard_by(other)

    def say(speaker: int) -> None:
        for number in range(3):
            one.send([speaker, number, LONG if number == 1 else b"short"])

    speakers = [threading.Thread(target=say, args=(speaker,)) for speaker in range(2)]
    for thread in speakers:
        thread.start()
    for thread in speakers:
        thread.join()
    ear.until(lambda: len(ear.words) == 6)
    for speaker in range(2):
        assert [(number, len(body)) for who, number, body in ear.words if who == speaker] == [
            (0, 5),
            (1, len(LONG)),
            (2, 5),
        ]
    one.close()
    other.close()


def test_a_side_that_never_reads_is_refused_words_once_many_wait_and_nobody_is_held_up() -> None:
    ours, theirs = multiprocessing.Pipe()
    one = SocketLink.invite("policy")
    theirs.send(one.notice(0))

    def stop() -> None:
        link = joining(ours)
        assert ours.recv() == "stop"
        os.kill(os.getpid(), signal.SIGSTOP)
        link.close()

    with forked(stop) as child:
        one.opened.wait(10)
        theirs.send("stop")
        os.waitpid(child, os.WUNTRACED)
        begun = time.monotonic()

        def fill() -> None:
            for _ in range(100):
                one.send(["a word", LONG])

        with pytest.raises(TransferFailed, match=rf"\(pid {child}\) does not read what it is sent: 64 MiB wait"):
            fill()
        one.close()
        assert time.monotonic() - begun < 10
        os.kill(child, signal.SIGCONT)
    ours.close()
    theirs.close()


def test_an_end_that_nobody_has_joined_takes_no_words() -> None:
    one = SocketLink.invite("policy")
    with pytest.raises(TransferFailed, match="has not joined"):
        one.send(["a word"])
    one.close()
    with pytest.raises(ClosedError):
        one.send(["a word"])


def test_a_notice_of_an_end_that_is_closed_or_taken_is_refused_at_once_and_may_be_followed_by_another() -> None:
    closed, (one, other), late = SocketLink.invite("policy"), pair(), SocketLink("policy")
    notices = closed.notice(1), one.notice(2)
    closed.close()
    end_of_the_loop(closed)
    for notice in notices:
        with pytest.raises(PeerLost, match=f"of version {notice.version} of 'policy' has closed its end, or"):
            late.join(notice, OWN)
        notice.name_other("critic")
    assert late.error is None
    third = SocketLink.invite("policy")
    late.join(third.notice(3), OWN)
    with pytest.raises(PeerLost, match="of another sender"):
        late.join(notices[1], OWN)
    for link in (one, other, late, third):
        link.close()


def end_of_the_loop(link: SocketLink) -> None:
    """Waits until what was told the hub's loop is done."""
    done = threading.Event()
    assert link._sockets is not None
    link._sockets.hub.call(done.set)
    hub_has_ended = not link._sockets.hub.sockets
    assert done.wait(10) or hub_has_ended


def test_threads_that_join_at_once_make_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = SocketLink.invite("policy"), SocketLink("policy")
    notice, met = one.notice(1), socket_link._connect
    connecting, connections = threading.Barrier(2), []

    def connect(notice: Notice) -> tuple[socket.socket, int]:
        with contextlib.suppress(threading.BrokenBarrierError):
            connecting.wait(0.3)  # as long as the other one might be on its way here
        connections.append(met(notice))
        return connections[-1]

    monkeypatch.setattr(socket_link, "_connect", connect)
    threads = [threading.Thread(target=other.join, args=(notice, mode)) for mode in (OWN, LOOP)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(connections) == 1
    ear = heard_by(one)
    other.send(["a word"])
    ear.until(lambda: ear.words == [["a word"]])
    assert one.mode == LOOP
    assert one.error is None
    one.close()
    other.close()


def test_a_mode_is_told_and_a_loop_stays_one() -> None:
    one, other = pair()
    assert one.mode == OWN
    for mode in (LOOP, OWN):
        other.join(one.notice(1), mode)
        other.send([mode])
    ear = heard_by(one)
    ear.until(lambda: len(ear.words) == 2)
    assert one.mode == LOOP
    one.close()
    other.close()


def test_a_receiver_of_another_id_is_named_and_the_next_one_may_join() -> None:
    one = SocketLink.invite("actor")
    one.notice(0).name_other("policy")
    other = SocketLink("actor")
    for _ in range(1000):
        if "'policy'" in one.label:
            break
        time.sleep(0.01)
    assert one.label.endswith("which has a receiver of 'policy' and none of 'actor'")
    assert not one.is_joined
    other.join(one.notice(0), OWN)
    one.opened.wait(10)
    assert "'policy'" not in one.label
    one.close()
    other.close()


def test_an_accept_without_a_free_descriptor_is_tried_again_after_a_pause() -> None:
    one, other = SocketLink.invite("policy"), SocketLink("policy")
    end_of_the_loop(one)
    assert one._sockets is not None
    listener = one._sockets.listener
    assert listener is not None
    tries: list[float] = []

    def accept() -> tuple[socket.socket, object]:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return listener.accept()

    one._sockets.listener = Mock(accept=accept, fileno=listener.fileno, close=listener.close)
    other.join(one.notice(0), OWN)
    one.opened.wait(10)
    assert tries[2] - tries[0] > 0.1
    one.close()
    other.close()


def test_a_join_without_a_free_descriptor_says_so_and_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = SocketLink.invite("policy"), SocketLink("policy")
    with monkeypatch.context() as short:
        short.setattr(local_socket, "connect", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(OSError, match="Too many open files") as raised:
            other.join(one.notice(0), OWN)
    assert raised.value.errno == errno.EMFILE
    other.join(one.notice(0), OWN)
    one.opened.wait(10)
    one.close()
    other.close()


def test_a_hub_that_no_thread_can_end_serves_the_next_link(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SocketLink.invite("policy")
    hub = socket_link._Hub.current
    assert hub is not None
    with monkeypatch.context() as short:
        short.setattr(socket_link.LazyThread, "submit", Mock(side_effect=RuntimeError("can't start new thread")))
        first.close()
        end_of_the_loop(first)
    assert socket_link._Hub.current is hub
    SocketLink.invite("policy").close()
    hub._thread.join(10)
    assert not hub._thread.is_alive()


def test_a_sender_of_another_network_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = SocketLink.invite("policy")
    notice = closed.notice(1)
    closed.close()
    end_of_the_loop(closed)
    monkeypatch.setattr(socket_link, "_network", lambda: 1)
    with pytest.raises(ConfigError, match="another network namespace"):
        SocketLink("policy").join(notice, OWN)


def test_another_users_process_is_refused_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(sock: socket.socket) -> int:
        raise AuthError("the other end of the UNIX socket belongs to user 7")

    one, other = SocketLink.invite("policy"), SocketLink("policy")
    with monkeypatch.context() as patch:
        patch.setattr(local_socket, "check_peer", refuse)
        with pytest.raises(AuthError):
            other.join(one.notice(0), OWN)
        end_of_the_loop(one)
        for _ in range(1000):
            if "was refused" in caplog.text:
                break
            time.sleep(0.01)
    assert "belongs to user 7" in caplog.text
    other.join(one.notice(0), OWN)
    one.opened.wait(10)
    one.close()
    other.close()


# -- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "exits", "killed, and a child of it has the socket"])
def test_a_process_that_ends_is_named_within_a_second_after_its_last_word(how: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    one = SocketLink.invite("policy", "worker 3")
    ours.send(one.notice(0))
    heir = os.pipe()

    def work() -> None:
        link = joining(theirs)
        link.send(["last word"])
        if "socket" in how:
            assert link._sockets is not None
            assert link._sockets.connection is not None
            files = [link._sockets.connection.fileno(), heir[0]]
            command = [sys.executable, "-c", f"import os; os.read({heir[0]}, 1)"]
            os.close(heir[1])
            subprocess.Popen(command, pass_fds=files)
        theirs.send("said")
        if how == "exits":
            theirs.poll(60)
            os._exit(3)
        threading.Event().wait()

    with forked(work) as child:
        ear = heard_by(one)
        assert ours.recv() == "said"
        begun = time.monotonic()
        if how == "exits":
            ours.send("go")
        else:
            os.kill(child, signal.SIGKILL)
        ear.until(lambda: ear.end is not None)
        assert time.monotonic() - begun < 1
        status = "exit code 3" if how == "exits" else "killed by SIGKILL"
        assert str(ear.end) == f"worker 3 (pid {child}) is gone: its process has ended: {status}"
        assert isinstance(ear.end, PeerLost)
        assert ear.words == [["last word"]]
    for number in heir:
        os.close(number)
    one.close()
    ours.close()
    theirs.close()


def test_a_sender_that_dies_while_a_receiver_joins_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    with forked(lambda: None) as dead:
        assert exit_code(dead) == 0
    monkeypatch.setattr(local_socket, "check_peer", lambda sock: dead)
    one, other = SocketLink.invite("policy"), SocketLink("policy")
    ear = heard_by(other)
    with contextlib.suppress(PeerLost):  # it may be known by then
        other.join(one.notice(0), OWN)
    ear.until(lambda: ear.end is not None)
    assert str(ear.end).endswith("is gone: its process has ended")
    one.close()
    other.close()


def test_a_process_that_ends_at_once_has_joined_all_the_same() -> None:
    ours, theirs = multiprocessing.Pipe()
    for _ in range(5):
        one = SocketLink.invite("policy")
        ours.send(one.notice(0))

        def work() -> None:
            joining(theirs)
            os._exit(3)

        with forked(work) as child:
            ear = heard_by(one)
            assert exit_code(child) == 3
            ear.until(lambda ear=ear: ear.end is not None)  # type: ignore[misc]
        assert "is gone: its " in str(ear.end)
        one.close()
    ours.close()
    theirs.close()


def test_a_socket_that_ends_without_a_word_ends_the_link() -> None:
    one, other = pair()
    ear = heard_by(one)
    assert other._sockets is not None
    assert other._sockets.connection is not None
    other._sockets.connection.shut()
    ear.until(lambda: ear.end is not None)
    assert "is gone: its socket has ended (end of file)" in str(ear.end)
    one.close()
    other.close()


# -- forks ----------------------------------------------------------------------------------------------------------


def test_a_forked_process_has_links_that_have_ended_and_its_parents_go_on() -> None:
    (one, other), invited = pair(), SocketLink.invite("policy")
    one_ear, other_ear = heard_by(one), heard_by(other)
    numbers = {end.connection.fileno() for end in (one._sockets, other._sockets) if end and end.connection}

    def look() -> None:
        for link in (one, other, invited):
            with pytest.raises(ForkedProcessError, match=f"belongs to process {os.getppid()}"):
                link.send(["from the child"])
            link.close()
        for number in numbers:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)
        mine, mine_too = pair()  # which has a loop of its own
        ear = heard_by(mine_too)
        mine.send(["here"])
        ear.until(lambda: ear.words == [["here"]])

    with forked(look) as child:
        assert exit_code(child) == 0
    one.send(["after"])
    other_ear.until(lambda: other_ear.words == [["after"]])
    other.send(["too"])
    one_ear.until(lambda: one_ear.words == [["too"]])
    for link in (one, other, invited):
        link.close()


def test_forks_at_any_moment_hold_up_nobody_and_lose_nothing() -> None:
    """Words, openings and closings in other threads while this one forks; each child closes its copies."""
    one, other = pair()
    ear = heard_by(other)
    ends, said = threading.Event(), 0
    interval = sys.getswitchinterval()

    def speak() -> None:
        nonlocal said
        while not ends.is_set():
            one.send([said])
            said += 1
            if said % 50 == 0:
                ear.until(lambda so_far=said - 50: len(ear.words) >= so_far)  # type: ignore[misc]

    def open_and_close() -> None:
        while not ends.is_set():
            for link in pair():
                link.close()

    def look() -> None:
        for link in (one, other):
            with contextlib.suppress(ForkedProcessError):
                link.send(["from the child"])
                raise AssertionError("a forked process has said something")
            link.close()

    threads = [threading.Thread(target=target) for target in (speak, open_and_close)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(int(os.environ.get("RLINF_FORKS", "30"))):
            with forked(look) as child:
                assert exit_code(child) == 0
    finally:
        sys.setswitchinterval(interval)
        ends.set()
        for thread in threads:
            thread.join(30)
    ear.until(lambda: len(ear.words) == said)
    assert ear.words == [[number] for number in range(said)]
    one.close()
    other.close()


# -- nothing is left ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "dropped", "dropped unmet"])
def test_many_links_leave_no_descriptor_and_no_thread(how: str) -> None:
    gc.collect()
    before = leaks.take()
    for _ in range(20):
        links = [SocketLink.invite("policy") for _ in range(10)] if "unmet" in how else [*pair(), *pair()]
        for link in links:
            link.listen(Ear())
            if how == "closed":
                link.close()
        del links, link
    gc.collect()
    assert leaks.settle(before) == []


def test_what_is_dropped_while_a_word_is_heard_ends_for_the_other_side() -> None:
    kept, dropped = pair()
    ear, ends = heard_by(kept), [dropped]

    class Collecting(Ear):
        def on_message(self, words: LinkMessage) -> None:
            ends.clear()
            gc.collect()

    dropped.listen(Collecting())
    del dropped
    kept.send(["a word"])
    ear.until(lambda: ear.end is not None)
    assert isinstance(ear.end, PeerLost)
    kept.close()
