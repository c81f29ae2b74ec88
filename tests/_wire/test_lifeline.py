"""Lifelines: the near end of a daemon's stdin and stdout, against small programs."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import uvloop

from rlinf_async._wire import lifeline, marked_lines
from rlinf_async._wire.lifeline import Lifeline
from rlinf_async.errors import ClosedError, DeadlineExceeded, LaunchError
from tests._support.lifeline_programs import start

Body = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Runs a coroutine function on each kind of loop, with a watchdog."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(body: Body) -> None:
        async def watched() -> None:
            async with asyncio.timeout(20):
                await body()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(watched())

    return run


def test_only_marked_lines_are_messages(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            print('{"event": "noise"}', flush=True)
            sys.stdout.write("no newline before the marker: "); sys.stdout.flush()
            say(event="one")
            print(marker + "not json", flush=True)
            say(event="two")
            line()
        """)
        try:
            assert [await far.receive(10), await far.receive(10)] == [{"event": "one"}, {"event": "two"}]
            with pytest.raises(DeadlineExceeded, match=r"node7 within 0.05 s(.|\n)*no newline before the marker"):
                await far.receive(0.05)
        finally:
            await far.close()

    run(body)


def test_noise_without_end_is_survived_without_being_kept(
    run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marked_lines, "_MAX_LINE_BYTES", 1 << 20)

    async def body() -> None:
        far = await start("""
            for _ in range(40):
                os.write(1, b"m" * (512 << 10))
            say(event="here")
            line()
            for _ in range(40):
                os.write(1, b"m" * (256 << 10) + b"\\n")
            say(event="there")
            line()
        """)
        try:
            assert await far.receive(15) == {"event": "here"}
            await far.send({})
            assert await far.receive(15) == {"event": "there"}
            assert len(far.stray_output()) < 20_000
        finally:
            await far.close()

    tracemalloc.start()
    try:
        run(body)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_the_end_tells_exit_code_and_last_words(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            say(event="last")
            print("welcome to the machine", flush=True)
            print("cannot open the pod bay doors", file=sys.stderr)
            sys.exit(7)
        """)
        assert await far.wait() == 7
        assert await far.receive(5) == {"event": "last"}
        with pytest.raises(LaunchError, match=r"exit code 7(.|\n)*pod bay(.|\n)*welcome"):
            await far.receive(5)
        assert far.stderr_tail == ("cannot open the pod bay doors",)
        with pytest.raises(LaunchError, match="exit code 7"):
            await far.send({"op": "stop"})
        await far.close()

    run(body)


def test_a_signal_is_told_as_one(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("line()")
        far.kill()
        with pytest.raises(LaunchError, match="killed by signal 9"):
            await far.receive(5)
        await far.close()

    run(body)


def test_a_descendant_that_holds_the_output_open_does_not_hide_the_end(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            if os.fork() == 0:
                os.read(0, 1)
                os._exit(0)
            os._exit(3)
        """)
        with pytest.raises(LaunchError, match="exit code 3"):
            await far.receive(5)
        await far.close()

    run(body)


def test_stop_lets_the_far_side_end_in_order(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            assert line() == {"op": "stop"}
            sys.exit(5)
        """)
        assert await far.stop(10) == 5

    run(body)


def test_the_far_side_of_a_lost_node_may_end_in_order_before_its_guardian_is_told_to_sweep(
    run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "_STOP_LOST_S", 30)

    async def body() -> None:
        far = await start("""
            line()
            time.sleep(0.1)
            sys.exit(5)
        """)
        await far.stop_lost(is_here=True)
        assert await far.wait() == 5

    run(body)


def test_a_far_side_that_ignores_everything_is_killed_in_time(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            say(event="deaf")
            while True:
                time.sleep(100)
        """)
        await far.receive(10)
        began = time.monotonic()
        assert await far.stop(0.2, cut=0.2) == -signal.SIGKILL
        assert time.monotonic() - began < 2

    run(body)


def test_closing_ends_the_stdin_of_the_far_side(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            line()
            sys.exit(9)
        """)
        await far.close()
        assert far.exit_code == 9
        with pytest.raises(ClosedError):
            await far.send({"op": "stop"})
        await far.close()

    run(body)


def test_a_forked_child_does_not_keep_the_far_side_alive_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = """
    import asyncio, os, signal, sys
    from rlinf_async._wire.lifeline import Lifeline

    async def main():
        far = await Lifeline.start(["sh", "-c", f"cat >/dev/null; echo ended >{sys.argv[1]}"], name="far")
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
    """
    argv = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "out")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as parent:
        assert parent.wait(20) == -signal.SIGKILL
        deadline = time.monotonic() + 10
        while not (tmp_path / "out").exists():
            assert time.monotonic() < deadline, "the far side has not seen the end of its stdin"
            time.sleep(0.01)


def test_the_prelude_arrives_first_and_whole(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start(
            """
            left, total = 3 << 20, 0
            while left:
                piece = os.read(0, left)
                left -= len(piece)
                total += sum(piece)
            say(total=total, then=line())
            """,
            prelude=[b"\1" * (1 << 20), b"\2" * (2 << 20)],
        )
        await far.send({"op": "go"})
        assert await far.receive(10) == {"total": 5 << 20, "then": {"op": "go"}}
        await far.close()

    run(body)


def test_a_far_side_that_ends_before_its_prelude_tells_why_in_receive(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("sys.exit('no room')", prelude=[b"x" * (4 << 20)])
        with pytest.raises(LaunchError, match="no room"):
            await far.receive(5)
        await far.close()

    run(body)


def test_a_far_side_that_never_reads_cannot_hold_the_sender(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("time.sleep(100)")
        with pytest.raises(DeadlineExceeded, match="node7 did not read"):
            await far.send({"peers": "x" * (8 << 20)}, timeout=0.1)
        with pytest.raises(ClosedError):  # half a line has left: nothing may follow
            await far.send({"op": "stop"})
        far.kill()
        await far.close()

    run(body)


def test_lines_of_stderr_are_handed_on_once_somebody_listens(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        far = await start("""
            line()
            sys.stderr.write("one\\ntwo\\r\\nthree")
        """)
        heard: list[str] = []
        far.on_stderr = heard.append
        await far.send({})
        await far.wait()
        await far.close()
        assert heard == ["one", "two", "three"]

    run(body)


def test_a_program_that_does_not_exist_is_a_launch_error(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        with pytest.raises(LaunchError, match="/no/such/python cannot be started: No such file"):
            await Lifeline.start(["/no/such/python"], name="node7")

    run(body)


def test_of_a_process_that_cannot_be_watched_nothing_is_left(
    run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        with monkeypatch.context() as short:
            short.setattr(os, "pidfd_open", Mock(side_effect=OSError(errno.EMFILE, "no descriptor is free")))
            before = os.listdir("/proc/self/fd"), psutil.Process().children()
            with pytest.raises(LaunchError, match=r"sleep cannot be watched: .*no descriptor is free \(it may open "):
                await Lifeline.start(["sleep", "600"], name="far")
            assert (os.listdir("/proc/self/fd"), psutil.Process().children()) == before

    run(body)


def test_nothing_is_left_in_the_embedding_process(run: Callable[[Body], None]) -> None:
    async def body() -> None:
        async def once() -> None:
            far = await start("""
                say(event="up")
                line()
            """)
            await far.receive(10)
            await far.stop(10)

        await once()
        await asyncio.sleep(0)
        before = state()
        for _ in range(10):
            await once()
        assert state() == before

    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        return sorted(os.listdir("/proc/self/fd")), threading.active_count(), handlers

    run(body)
