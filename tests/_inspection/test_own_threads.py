"""A thread waits where Python's own locks keep it, and runs or sleeps elsewhere."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from rlinf_async._inspection.code_frames import frames_from
from rlinf_async._inspection.own_threads import Doing, doing
from rlinf_async._inspection.state.run_report import ActivityState
from rlinf_async._inspection.system_calls import SystemCall


class Locks:
    """All that the threads below wait for; ``open`` lets them go."""

    def __init__(self) -> None:
        self.lock, self.rlock, self.event = threading.Lock(), threading.RLock(), threading.Event()
        self.queue: queue.Queue[None] = queue.Queue()
        self.full: queue.Queue[None] = queue.Queue(1)
        self.permits = threading.Semaphore(0)
        self.future: Future[None] = Future()
        self.thread = threading.Thread(target=self.event.wait, name="ends last")
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.goes_on = True

    def enter(self) -> None:
        with self.lock:
            pass

    def enter_reentrant(self) -> None:
        with self.rlock:
            pass

    def acquire(self) -> None:
        self.lock.acquire(blocking=bool(self))
        self.lock.release()

    def acquire_soon(self) -> None:
        if self.lock.acquire(timeout=60):
            self.lock.release()

    def wait(self) -> None:
        self.event.wait()

    def wait_soon(self) -> None:
        self.event.wait(60)

    def get(self) -> None:
        self.queue.get()

    def put(self) -> None:
        self.full.put(None)

    def permit(self) -> None:
        self.permits.acquire()

    def result(self) -> None:
        self.future.result()

    def join(self) -> None:
        self.thread.join()

    def child(self) -> None:
        self.process.wait()

    def sleep(self) -> None:
        while self.goes_on:
            time.sleep(0.2)

    def compute(self) -> None:
        while self.goes_on:
            pass

    def open(self) -> None:
        self.goes_on = False
        self.event.set()
        self.lock.release()
        self.rlock.release()
        self.queue.put(None)
        self.full.get()
        self.permits.release()
        self.future.set_result(None)
        self.process.communicate(b"\n")


@contextlib.contextmanager
def inside(function: Callable[[], None], locks: Locks) -> Iterator[threading.Thread]:
    """A thread that has come to where it waits: it is not about to run any more."""
    locks.thread.start()
    locks.lock.acquire()
    locks.rlock.acquire()
    locks.full.put(None)
    thread = threading.Thread(target=function)
    thread.start()
    try:
        yield thread
    finally:
        locks.open()
        thread.join()
        locks.thread.join()


def look(thread: threading.Thread) -> Doing:
    assert thread.ident is not None
    return doing(frames_from(sys._current_frames()[thread.ident]), thread.native_id)


def state_of(name: str, expected: ActivityState) -> Doing:
    """What a thread does in that method, once it is that; what it does instead, after 10 s."""
    locks, until = Locks(), time.monotonic() + 10
    with inside(getattr(locks, name), locks) as thread:
        while (found := look(thread)).state is not expected and time.monotonic() < until:
            pass
    return found


WAITS = {
    "enter": ("lock", "a lock"),
    "enter_reentrant": ("lock", "a lock"),
    "acquire": ("lock", "a lock"),
    "wait": ("event", "threading.Event.wait()"),
    "get": ("queue", "queue.Queue.get()"),
    "put": ("queue", "queue.Queue.put()"),
    "permit": ("lock", "threading.Semaphore.acquire()"),
    "result": ("future", "a concurrent.futures.Future"),
    "join": ("thread", "the end of thread ends last"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_thread_that_a_lock_keeps_waits_for_that(name: str) -> None:
    found = state_of(name, ActivityState.WAITING)
    assert (found.state, found.kind, found.what) == (ActivityState.WAITING, *WAITS[name])
    assert found.sleeps > 0
    assert (found.thread is not None) is (name == "join")
    assert (found.future is not None) is (name == "result")


@pytest.mark.parametrize("name", ["sleep", "wait_soon", "acquire_soon"])
def test_a_thread_with_a_time_to_go_on_at_sleeps(name: str) -> None:
    assert state_of(name, ActivityState.SLEEPING).state is ActivityState.SLEEPING


@pytest.mark.parametrize("name", ["compute", "child"])
def test_a_thread_that_computes_is_running_though_this_one_has_the_interpreter(name: str) -> None:
    """And so is one that waits for another process."""
    locks, seen = Locks(), []
    with inside(getattr(locks, name), locks) as thread:
        until = time.monotonic() + 0.1
        while not seen or time.monotonic() < until:
            seen.append(look(thread))
    assert {each.state for each in seen} == {ActivityState.RUNNING}
    assert ("process", f"the end of process {locks.process.pid}") == (seen[-1].kind, seen[-1].what) or name != "child"


def test_a_lock_that_processes_share_may_be_released_by_another_one() -> None:
    event = multiprocessing.get_context("fork").Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    until = time.monotonic() + 10
    while (seen := look(thread)).kind != "lock" and time.monotonic() < until:
        time.sleep(0.01)
    event.set()
    thread.join()
    assert (seen.state, seen.what) == (ActivityState.RUNNING, "a lock that it shares with other processes")


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far


def test_a_thread_that_reads_is_running_and_tells_of_what_the_data_comes() -> None:
    reader, writer = os.pipe()
    with connection() as (near, far):
        reads = {
            f"data from socket 127.0.0.1:{far.getsockname()[1]}": (lambda: near.recv(1), lambda: far.send(b"x")),
            "data from a pipe": (lambda: os.read(reader, 1), lambda: os.write(writer, b"x")),
        }
        for what, (read, write) in reads.items():
            thread = threading.Thread(target=read)
            thread.start()
            until = time.monotonic() + 10
            while (found := look(thread)).what != what and time.monotonic() < until:
                pass
            write()
            thread.join()
            assert (found.state, found.what) == (ActivityState.RUNNING, what)
    os.close(reader)
    os.close(writer)


def test_an_address_without_a_host_is_told_as_it_is() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as reader:
        assert SystemCall("recvfrom", (reader.fileno(), 0)).outside == ("socket", "data from socket (0, 0)")


def test_a_child_that_has_ended_is_told_where_a_pipe_is_read() -> None:
    reader, writer = os.pipe()
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    thread = threading.Thread(target=os.read, args=(reader, 1))
    thread.start()
    until = time.monotonic() + 10
    while "ended" not in (found := look(thread)).what and time.monotonic() < until:
        pass
    os.write(writer, b"x")
    thread.join()
    assert found.what == f"data from a pipe; child process {child} has ended (exit code 7)"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(reader)
    os.close(writer)


EXITS = """
import queue, threading
from rlinf_async._inspection.own_activities import own_activities

def write():
    while True:
        activities = {each.name: each for each in own_activities()}
        main = activities.get("thread MainThread")
        if main is not None and main.awaits:
            print(main.state, main.awaits)
            print(main.age)
            return

threading.Thread(target=write, name="metrics").start()
"""


def test_the_end_of_a_script_waits_for_its_threads_and_has_an_age() -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=60, check=True)
    state, age = done.stdout.splitlines()
    assert state == "waiting ['thread metrics']"
    assert 0 <= float(age) <= time.monotonic() - begun
