"""Ranks in the debugger: ``breakpoint()``, ``rlinf-ctl debug`` on a terminal, deadlines that wait meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerDied, WorkerGroup

pytestmark = pytest.mark.shared_cluster

CONTROL = "from rlinf_launcher.cli.control import main; raise SystemExit(main())"
CALL_TIMEOUT_S = 1.0


class Debugged(Worker):
    def at_breakpoint(self, number: int) -> int:
        doubled = number * 2 + self._rank
        breakpoint()
        return doubled + 1

    async def coroutine_at_breakpoint(self, number: int) -> int:
        doubled = number * 2 + self._rank
        breakpoint()
        return doubled + 1

    def ping(self) -> int:
        return self._rank

    def deadlocked(self) -> None:
        self.recv("rollout", 1 - self._rank).wait()

    async def deadlocked_coroutine(self) -> None:
        await self.recv("rollout", 1 - self._rank)

    def naps_after_breakpoint(self, seconds: float) -> str:
        breakpoint()
        time.sleep(seconds)
        return "awake"

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def compute(self, seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        return "computed"

    def in_c(self, rounds: int) -> str:
        hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
        return "hashed"

    def raises(self, number: int) -> None:
        doubled = number * 2
        self.refuse(doubled)

    def refuse(self, doubled: int) -> None:
        raise ValueError(f"no {doubled}")

    async def fails_beside(self, number: int) -> None:
        async def task() -> None:
            self.refuse(number)

        self.background(task())
        await asyncio.sleep(60)


class Operator:
    """``rlinf-ctl debug`` on a terminal of its own."""

    def __init__(self, run: str, ranks: str) -> None:
        self._near, far = pty.openpty()
        command = [sys.executable, "-c", CONTROL, "debug", "--run", run, ranks]
        self.process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far)
        os.close(far)
        self._text = ""

    def until(self, text: str, timeout: float = 20) -> str:
        """Return what is shown up to this text."""
        deadline = time.monotonic() + timeout
        while text not in self._text:
            readable, _, _ = select.select([self._near], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{text!r} has not come; shown so far: {self._text!r}"
            try:
                self._text += os.read(self._near, 4096).decode().replace("\r\n", "\n")
            except OSError:
                raise AssertionError(f"it has ended before {text!r}: {self._text!r}") from None
        shown, self._text = self._text.split(text, 1)
        return shown

    def type(self, line: str) -> None:
        os.write(self._near, f"{line}\n".encode())

    def ends(self) -> int:
        return self.process.wait(20)

    def close(self) -> None:
        """End it; where ranks run, by Ctrl-C, so that none learns only in the next test that it has gone."""
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.process.kill()
        self.process.wait()
        os.close(self._near)


@pytest.fixture
def group(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[WorkerGroup[Debugged]]:
    group = Debugged.create_group().launch(
        cluster, NodePlacementStrategy([0, 0]), name="rollout", close_grace=0.5, **getattr(request, "param", {})
    )
    group.ping().wait()
    yield group
    group.close()


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[WorkerGroup[Debugged]]:
    """A group of the name of the others, which have been closed by the time of the first test that has it."""
    group = Debugged.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="rollout", close_grace=0.5)
    group.ping().wait()
    yield group
    group.close()


@pytest.fixture
def run(cluster: Cluster) -> str:
    return str(cluster._client.welcome["run"])


@contextmanager
def debugging(run: str, ranks: str) -> Iterator[Operator]:
    operator = Operator(run, ranks)
    try:
        yield operator
    finally:
        operator.close()


@pytest.mark.parametrize("group", [{"call_timeout": CALL_TIMEOUT_S}], indirect=True)
@pytest.mark.parametrize("method", ["at_breakpoint", "coroutine_at_breakpoint"])
def test_a_breakpoint_waits_says_where_and_is_debugged(
    group: Any, run: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        call = getattr(group, method)(10)
        with debugging(run, "rollout:1") as operator:
            operator.until("-> breakpoint()\n(rollout:1) ")
            time.sleep(CALL_TIMEOUT_S)  # the deadline of the call passes, and does not count
            operator.type("p doubled")
            assert operator.until("(rollout:1) ").endswith("\n21\n")
            operator.type("n")
            operator.until("-> return doubled + 1\n(rollout:1) ")
            operator.type("doubled = 50")
            operator.until("(rollout:1) ")
            operator.type("q")
            assert operator.ends() == 0
        with debugging(run, "rollout:0") as operator:
            operator.until("(rollout:0) ")
            operator.type("c")
            assert call.wait() == [21, 51]
    said = next(record.getMessage() for record in caplog.records if "rollout:1 waits" in record.getMessage())
    assert f"test_debugging.py:{breakpoint_line(method)} in " in said
    assert said.endswith(f"`rlinf-ctl debug --run {run} rollout:1` attaches")


def breakpoint_line(method: str) -> int:
    return int(getattr(Debugged, method).__code__.co_firstlineno) + 2


def test_a_rank_at_whose_prompt_megabytes_are_printed_goes_on(group: Any, run: str) -> None:
    call = group.execute_on(0).at_breakpoint(5)
    with debugging(run, "rollout:0") as operator:
        operator.until("(rollout:0) ")
        operator.type("p 'x' * 2_000_000")
        assert operator.until("(rollout:0) ").rstrip().endswith(" characters are left out")
        operator.type("c")
        assert call.wait(20) == [11]


@pytest.mark.parametrize("group", [{"env": {"RLINF_POST_MORTEM_S": "60"}}], indirect=True)
def test_what_a_method_has_raised_is_looked_at_post_mortem(group: Any, run: str) -> None:
    call = group[0].raises(21)
    with debugging(run, "rollout:0") as operator:
        assert "ValueError: no 42\n" in operator.until("-> raise ValueError")
        operator.until("(rollout:0) ")
        operator.type("up")
        operator.until("-> self.refuse(doubled)\n(rollout:0) ")
        operator.type("p number")
        assert operator.until("(rollout:0) ").endswith("\n21\n")
        operator.type("q")
        with pytest.raises(ValueError, match="no 42"):
            call.wait()


@pytest.mark.parametrize("group", [{"env": {"RLINF_POST_MORTEM_S": "60"}}], indirect=True)
def test_a_background_task_that_has_failed_is_looked_at_too(group: Any, run: str) -> None:
    call = group[0].fails_beside(21)
    with debugging(run, "rollout:0") as operator:
        operator.until("-> raise ValueError")
        operator.until("(rollout:0) ")
        operator.type("p doubled")
        assert operator.until("(rollout:0) ").endswith("\n21\n")
        operator.type("q")
        with pytest.raises(WorkerDied, match="no 21"):
            call.wait()


def test_a_group_that_is_closed_ends_the_wait_at_a_breakpoint(group: Any, run: str) -> None:
    call = group.at_breakpoint(1)
    with debugging(run, "rollout:0") as operator:
        operator.until("(rollout:0) ")
        began, group._members.close_grace = time.monotonic(), 60.0
        group.close()
        assert time.monotonic() - began < 6, "a fifth of the grace has passed"
        operator.until("rollout:0 has ended")
        assert operator.ends() == 0
    assert call.outcomes().wait()


@pytest.mark.parametrize("group", [{"env": {"RLINF_POST_MORTEM_S": "0.2"}}], indirect=True)
def test_a_post_mortem_that_nobody_comes_to_ends(group: Any) -> None:
    with pytest.raises(ValueError, match="no 42"):
        group[0].raises(21).wait(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["deadlocked", "deadlocked_coroutine"])
def test_every_rank_of_a_deadlock_stops(group: Any, run: str, method: str) -> None:
    getattr(group, method)()
    time.sleep(0.2)
    with debugging(run, "rollout") as operator:
        operator.until("(rollout:0-1) ")
        operator.type("p self._rank")
        assert "[rollout:1]\n1\n" in operator.until("(rollout:0-1) ")
        operator.type("q")
        assert operator.ends() == 0


def test_a_rank_that_dies_in_the_debugger_and_one_that_is_dead_are_told(group: Any, run: str) -> None:
    call = group.at_breakpoint(1)
    with debugging(run, "rollout:0") as operator:
        operator.until("(rollout:0) ")
        os.kill(group.worker_info_list[0].worker.pid, signal.SIGKILL)
        operator.until("rollout:0 has ended")
        assert operator.ends() == 0
    with debugging(run, "rollout:0") as operator:
        operator.until("rollout:0 cannot be debugged: it has ended")
        assert operator.ends() == 3
    with pytest.raises(WorkerDied):
        call.wait()


# -- of one group, which goes on -----------------------------------------------------------------------------------


def test_several_ranks_have_one_prompt_and_stand_in_status_and_verdict(shared: Any, run: str) -> None:
    call = shared.at_breakpoint(1)
    with debugging(run, "rollout") as operator:
        operator.until("(rollout:0-1) ")
        words = [sys.executable, "-c", CONTROL, "--run", run]
        status = subprocess.run([*words, "status"], capture_output=True, text=True, timeout=20).stdout
        assert status.count("in the debugger at ") == 2
        verdict = subprocess.run([*words, "stuck"], capture_output=True, text=True, timeout=20).stdout
        assert re.search(r"rollout:0-1 \(localhost\) are in the debugger at \S+test_debugging.py:\d+ in ", verdict)
        operator.type("p self._rank")
        answers = operator.until("(rollout:0-1) ")
        assert "[rollout:0]\n0\n" in answers
        assert "[rollout:1]\n1\n" in answers
        operator.type("c")
        assert call.wait() == [3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "result"), [("sleep", "slept"), ("compute", "computed")])
def test_a_running_rank_stops_between_two_bytecodes_or_in_a_wait(
    shared: Any, run: str, method: str, result: str
) -> None:
    call = getattr(shared[0], method)(6)
    with debugging(run, "rollout:0") as operator:
        operator.until("(rollout:0) ")
        operator.type("p seconds")
        assert operator.until("(rollout:0) ").endswith("\n6\n")
        operator.type("c")
        assert call.wait() == [result]


@pytest.mark.slow
def test_a_rank_inside_a_c_call_is_entered_when_that_returns(shared: Any, run: str) -> None:
    call = shared[0].in_c(20_000_000)
    time.sleep(0.2)
    with debugging(run, "rollout:0") as operator:
        operator.until("rollout:0 is inside a C call at ")
        operator.until("it enters when it returns\n")
        operator.until("(rollout:0) ", 60)
        operator.type("q")
        call.wait()


def test_an_idle_rank_stops_at_its_next_call(shared: Any, run: str) -> None:
    with debugging(run, "rollout:1") as operator:
        operator.until("rollout:1 is idle: it stops at the first line of its next call\n")
        call = shared.ping()
        operator.until("ping()\n")
        operator.until("(rollout:1) ")
        operator.type("c")
        assert call.wait() == [0, 1]


@pytest.mark.slow
def test_ranks_go_on_when_their_operator_is_killed(shared: Any, run: str) -> None:
    call = shared.at_breakpoint(1)
    with debugging(run, "rollout") as operator:
        operator.until("(rollout:0-1) ")
        operator.process.kill()
        assert call.wait(20) == [3, 4]


def test_a_rank_that_is_stepping_goes_on_when_its_operator_is_killed(shared: Any, run: str) -> None:
    call = shared[0].naps_after_breakpoint(1)
    with debugging(run, "rollout:0") as operator:
        operator.until("(rollout:0) ")
        operator.type("n")
        operator.until("-> time.sleep(seconds)\n(rollout:0) ")
        operator.type("n")
        time.sleep(0.3)
        operator.process.kill()
        assert call.wait(20) == ["awake"]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ("rollout:7", "group 'rollout' has no rank 7"),
        ("nobody", "there is no group 'nobody'"),
        ("driver", "a driver is debugged where it was started"),
    ],
)
def test_a_rank_that_is_not_there_is_one_sentence(shared: Any, run: str, ranks: str, words: str) -> None:
    with debugging(run, ranks) as operator:
        operator.until(words)
        assert operator.ends() == 3


def test_a_debugger_without_a_terminal_is_one_sentence(shared: Any, run: str) -> None:
    command = [sys.executable, "-c", CONTROL, "debug", "--run", run, "rollout:0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "a debugger needs a terminal" in done.stderr
