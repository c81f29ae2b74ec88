"""Lazy threads: order of jobs, and no thread while idle for long."""

from __future__ import annotations

import threading

import pytest

from rlinf_async._transports.lazy_thread import LazyThread


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
