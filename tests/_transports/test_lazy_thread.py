"""Jobs in order: in a thread that is there while there are any, or once a lock is released."""

from __future__ import annotations

import threading

import pytest

from rlinf_async._transports.lazy_thread import DeferredActions, LazyThread


def test_jobs_run_one_by_one_in_their_order_and_the_thread_ends_with_them() -> None:
    lane, done, gate, threads = LazyThread("test-lane"), [], threading.Event(), set()

    def job(number: int) -> None:
        gate.wait(5)
        threads.add(threading.current_thread())
        done.append(number)

    for number in range(100):
        lane.submit(lambda number=number: job(number))  # type: ignore[misc]
    gate.set()
    for thread in list(threading.enumerate()):
        if thread.name == "test-lane":
            thread.join(5)
    assert done == list(range(100))
    assert len(threads) == 1
    last = threading.Event()
    lane.submit(last.set)
    assert last.wait(5)


def test_a_thread_that_lingers_takes_the_next_job_and_ends_when_none_comes() -> None:
    lane = LazyThread("test-lane", linger_s=0.3)
    first = lane.call(threading.current_thread).result(5)
    assert lane.call(threading.current_thread).result(5) is first
    first.join(5)
    assert not first.is_alive()
    assert lane.call(threading.current_thread).result(5) is not first


def test_what_is_added_is_done_in_order_without_the_lock_also_what_that_adds() -> None:
    deferred, done = DeferredActions(), []

    def first() -> None:
        with deferred.locked():  # which would stand still if the lock were held
            deferred.add(lambda: done.append(3))
        done.append(1)

    with deferred.locked():
        deferred.add(first)
        deferred.add(lambda: done.append(2))
        assert done == []
    assert done == [1, 2, 3]


def test_another_thread_does_not_overtake() -> None:
    deferred, done = DeferredActions(), []
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(5)
        done.append("slow")

    def decide() -> None:
        with deferred.locked():
            deferred.add(slow)

    thread = threading.Thread(target=decide)
    thread.start()
    assert started.wait(5)
    with deferred.locked():
        deferred.add(lambda: done.append("fast"))
    assert done == []
    go_on.set()
    thread.join(5)
    assert done == ["slow", "fast"]


def test_what_was_decided_before_an_error_is_done() -> None:
    deferred, done = DeferredActions(), []

    def decide() -> None:
        with deferred.locked():
            deferred.add(lambda: done.append(1))
            raise ValueError("twice")

    with pytest.raises(ValueError, match="twice"):
        decide()
    assert done == [1]


def test_what_stands_behind_an_action_that_is_interrupted_is_done_all_the_same() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    deferred, done = DeferredActions(), []

    def decide() -> None:
        with deferred.locked():
            deferred.add(interrupt)
            deferred.add(lambda: done.append(1))

    with pytest.raises(KeyboardInterrupt):
        decide()
    assert done == [1]


def test_a_lane_that_could_not_get_a_thread_or_whose_job_has_raised_takes_the_next_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lane, ran = LazyThread("test-lane"), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            lane.submit(lambda: ran.append("refused"))
    lane.submit(lambda: ran.append(1 / 0))
    assert lane.call(lambda: ran).result(5) == []
    assert "division by zero" in caplog.text


def test_a_job_that_was_added_while_no_thread_could_start_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        lane.submit(lambda: ran.append("of another thread"))
        raise RuntimeError("can't start new thread")

    lane, ran = LazyThread("test-lane"), list[str]()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        lane.submit(lambda: ran.append("refused"))
    assert ran == ["of another thread"]
