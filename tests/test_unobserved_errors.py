"""Unobserved errors of calls: in the log, in warnings about waits, on Ctrl-C, at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, WorkerDied, settings
from rlinf_async._waits import slow_waits, unobserved_errors
from rlinf_async._waits.unobserved_errors import MAX_ERRORS, MAX_LINES, MAX_OBSERVED, UnobservedError, UnobservedErrors
from tests._support.until import until
from tests._support.workers import Plain, Stillborn

pytestmark = pytest.mark.shared_cluster

FAILS_BESIDE = "1 / 0 if self._rank == 1 else __import__('time').sleep({})"
"""Rank 1 fails while rank 0 is inside a method."""

SOON = 0.1
"""Seconds after which an error is logged here."""


class Log(logging.Handler):
    """What ``unobserved_errors`` logs, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._came = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._came:
            self.lines.append(record.getMessage())
            self._came.notify_all()

    def wait_for(self, part: str) -> str:
        """The first line with this in it."""
        with self._came:
            assert self._came.wait_for(lambda: any(part in line for line in self.lines), 30), self.lines
            return next(line for line in self.lines if part in line)


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    unobserved_errors.logger.addHandler(log)
    yield log
    unobserved_errors.logger.removeHandler(log)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.UNOBSERVED_ERROR_S.variable, str(SOON))


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="pair").wait_ready()
    yield group
    group.close()
    for error in cluster._client.unobserved.pending():
        cluster._client.unobserved.observed(error.cause)


# --- in the log ---------------------------------------------------------------------------------------------


def test_an_error_that_is_not_awaited_is_logged_with_its_remote_traceback(pair: Any, log: Log) -> None:
    handle = pair.fail([1])
    waiting = pair[0].sleep(60)
    line = log.wait_for("as told")
    assert line.startswith("failed, and is not awaited yet: pair.fail() on 2 ranks: rank 1: ValueError: as told\n")
    assert "from rank 1 of group 'pair' on localhost (pid" in line
    assert "raise ValueError(text)" in line
    waiting.cancel()
    with pytest.raises(ValueError, match="as told"):
        handle.wait()


def test_an_error_whose_handle_is_thrown_away_is_logged_too(pair: Any, log: Log) -> None:
    pair.fail([0], "thrown away")
    log.wait_for("thrown away")


def test_like_errors_are_folded_until_one_is_heard(pair: Any, log: Log) -> None:
    handles = [pair[0].fail([0], "time and again") for _ in range(10)]
    log.wait_for("failed 10 times by now")
    assert len(log.lines) == 2
    for handle in handles:
        with pytest.raises(ValueError, match="time and again"):
            handle.wait()
    log.lines.clear()
    again = pair[0].fail([0], "time and again")
    assert "Traceback" in log.wait_for("failed, and is not awaited yet")
    del again


async def test_an_error_is_logged_while_a_coroutine_waits_for_another_call(pair: Any, log: Log) -> None:
    handle = pair[1].fail([1], "all along")
    await pair[0].sleep(3 * SOON)
    log.wait_for("all along")
    del handle


def test_an_error_that_somebody_waits_for_is_theirs(pair: Any, log: Log) -> None:
    """Each of these waits before the error comes; then another error, which nothing waits for, is logged after them."""

    async def as_completed() -> None:
        async for _ in pair.block_and_fail(SOON).as_completed():
            pass

    async def stream() -> None:
        async for _ in pair.count_and_fail(3):
            pass

    ways: list[Callable[[], Any]] = [
        lambda: pair.block_and_fail(SOON).wait(),
        lambda: pair.block_and_fail(SOON)[1].wait(),
        lambda: asyncio.run(as_completed()),
        lambda: asyncio.run(stream()),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=r"as told|after 3"):
            way()
    assert not any(outcome.ok for outcome in pair.block_and_fail(SOON).outcomes().wait())
    assert unobserved_errors.lines() == []
    pair.fail([0], "thrown away as the last one")
    log.wait_for("the last one")
    assert len(log.lines) == 1


def test_the_view_of_one_rank_hears_no_error_of_another_one(pair: Any, log: Log) -> None:
    assert pair.fail([1], "of the other one")[0].wait() == 0
    log.wait_for("of the other one")


def test_the_view_of_a_rank_that_was_given_up_raises_why(pair: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        pair.run(FAILS_BESIDE.format(0.5))[0].wait()


async def test_an_error_that_had_come_when_its_wait_was_cancelled_is_logged(pair: Any, log: Log) -> None:
    call = pair.run(FAILS_BESIDE.format(0.5))
    wait = asyncio.ensure_future(call)
    while not call._tally.failed:
        await asyncio.sleep(0)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await asyncio.to_thread(log.wait_for, "ZeroDivisionError")


async def test_an_error_whose_wait_is_cancelled_before_it_goes_on_is_logged(pair: Any, log: Log) -> None:
    call = pair[0].block_and_fail(SOON)
    wait = asyncio.ensure_future(call)
    await asyncio.sleep(0)  # it waits
    while not call.done():
        time.sleep(0.001)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await asyncio.to_thread(log.wait_for, "as told")


def test_what_is_left_when_the_cluster_is_closed_is_logged_then(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setenv(settings.UNOBSERVED_ERROR_S.variable, "60")
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, name="one")
        handle = group.fail([0], "never awaited")
        until(handle.done)
    assert "was not awaited before its cluster was closed: one.fail()" in log.wait_for("never awaited")
    assert unobserved_errors.lines() == []


# --- errors that were caught ---------------------------------------------------------------------------------


def test_a_death_that_was_caught_once_is_not_reported_for_the_other_calls(pair: Any, log: Log) -> None:
    calls = [pair.sleep(60), pair.sleep(60), pair[1].sleep(60)]
    assert pair.noted().wait() == [["sleeping"] * 2, ["sleeping"] * 3]
    os.kill(pair.worker_info_list[1].worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        calls[0].wait()
    until(lambda: all(call.done() for call in calls))
    assert unobserved_errors.lines() == []
    pair[0].fail([0], "thrown away afterwards")
    log.wait_for("afterwards")
    assert len(log.lines) == 1


def test_a_constructors_error_that_a_call_has_raised_is_not_reported_for_the_group(cluster: Cluster) -> None:
    group = Stillborn.create_group([0]).launch(cluster, name="stillborn")
    with pytest.raises(ValueError, match="not born today"):
        group.hello().wait()
    until(group._ready.done)
    assert unobserved_errors.lines() == []
    group.close()


def test_a_launch_that_fails_is_not_silent(cluster: Cluster, log: Log) -> None:
    group = Plain.create_group().launch(cluster, name="broken", env={"PYTHONHOME": "/nonexistent"})
    assert "LaunchError" in log.wait_for("broken.__init__()")
    assert group._ready.done()
    with pytest.raises(Exception, match="template"):
        group.hello()
    assert unobserved_errors.lines() == []


# --- in words about waits --------------------------------------------------------------------------------------


def test_the_word_about_a_long_wait_has_the_errors(pair: Any, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.WAIT_WARNING_S.variable, "0.3")
    monkeypatch.setattr(slow_waits.logger, "handlers", [log])
    handle = pair[1].fail([1], "all along")
    until(handle.done)
    waiting = pair[0].sleep(60)
    thread = threading.Thread(target=lambda: waiting.outcomes().wait())
    thread.start()
    word = log.wait_for("still waiting")
    assert "\n    failed, and not awaited yet:\n    pair.fail() on 1 rank: rank 1: ValueError: all along (" in word
    waiting.cancel()
    thread.join()
    del handle


def test_ctrl_c_says_what_was_waited_for_and_what_has_failed(pair: Any, log: Log) -> None:
    handle = pair[1].fail([1], "all along")
    waiting = pair[0].sleep(60)

    def interrupt() -> None:
        log.wait_for("all along")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        waiting.wait()
    thread.join()
    (note,) = caught.value.__notes__
    assert note.startswith("while waiting for pair.sleep() on 1 rank")
    assert "pair.fail() on 1 rank: rank 1: ValueError: all along" in note
    waiting.cancel()
    del handle


# --- the account -------------------------------------------------------------------------------------------------


def an_error(cause: str = "cause", of: str = "a.f()", text: str = "a.f(): rank 0: ValueError") -> UnobservedError:
    return UnobservedError(cause, of, text)


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def account(told: list[tuple[str, str]]) -> Iterator[UnobservedErrors]:
    account = UnobservedErrors(
        lambda operation: told.append((type(operation).__name__, vars(operation)["key"])),
        lambda seconds, callback: None,
    )
    yield account
    account.forget()


def test_an_error_is_told_and_taken_back_once_it_is_heard(
    account: UnobservedErrors, told: list[tuple[str, str]]
) -> None:
    account.arrived(an_error())
    account.observed("cause")
    assert told == [("ReportError", "cause of a.f()"), ("WithdrawError", "cause of a.f()")]


def test_what_was_heard_first_is_never_told(account: UnobservedErrors, told: list[tuple[str, str]]) -> None:
    account.observed("cause")
    account.arrived(an_error())
    assert told == []


def test_errors_of_one_cause_are_heard_together(account: UnobservedErrors, told: list[tuple[str, str]]) -> None:
    account.arrived(an_error(of="a.f()"))
    account.arrived(an_error(of="a.g()"))
    account.arrived(an_error("another", of="a.g()"))
    account.observed("cause")
    assert [error.cause for error in account.pending()] == ["another"]


def test_memory_and_words_are_bounded(account: UnobservedErrors) -> None:
    for index in range(2 * MAX_ERRORS):
        account.arrived(an_error(f"cause {index}", text=f"error {index}"))
        account.observed(f"heard {index}")
    assert len(account.pending()) == MAX_ERRORS
    assert len(account._observed) <= MAX_OBSERVED
    assert len(unobserved_errors.lines()) == MAX_LINES + 1
    assert unobserved_errors.lines()[-1].endswith(" other failures")


def test_an_error_too_old_to_be_kept_is_taken_back_once_it_is_heard(
    account: UnobservedErrors, told: list[tuple[str, str]]
) -> None:
    for index in range(MAX_ERRORS + 10):
        account.arrived(an_error(f"cause {index}"))
    for index in range(MAX_ERRORS + 10):
        account.observed(f"cause {index}")
    keys = {word: {key for said, key in told if said == word} for word, _ in told}
    assert len(keys) == 2
    assert len({frozenset(each) for each in keys.values()}) == 1


def test_like_errors_are_one_line(account: UnobservedErrors) -> None:
    for index in range(3):
        account.arrived(an_error(f"cause {index}"))
    (line,) = [line for line in unobserved_errors.lines() if line.startswith("a.f()")]
    assert line.startswith("a.f(): rank 0: ValueError (")
    assert line.endswith(" s ago, and 2 more like it)")


def test_a_closed_account_takes_nothing_more(account: UnobservedErrors, told: list[tuple[str, str]]) -> None:
    account.close()
    account.arrived(an_error())
    assert told == []
