"""Parser of stack dumps: real ones of this process, ones of other Pythons, and ones that are cut."""

from __future__ import annotations

import faulthandler
import os
import signal
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlinf_async
import rlinf_launcher
from rlinf_async._inspection import code_frames
from rlinf_async._inspection.state import stack_dump
from rlinf_async._inspection.state.run_report import ActivityState, Frame, Target, TargetKind
from rlinf_async._waits import user_code

LAUNCHER = Path(str(rlinf_launcher.__file__)).parent.name
STDLIB = sysconfig.get_path("stdlib")
DUMP = """\
Thread 0x00007f18cd7286c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 629 in wait
  File "/home/me/train.py", line 6 in collect

Thread 0x00007f18cc000000 (most recent call first):
  File "/usr/lib/python3.11/concurrent/futures/thread.py", line 81 in _worker

Current thread 0x00007f18ce492b80 (most recent call first):
  File "/home/me/train.py", line 9 in step
  File "/home/me/train.py", line 30 in <module>
"""


@pytest.fixture
def dump() -> Iterator[Callable[[], str]]:
    """Has this process dump its stacks."""
    reader, writer = os.pipe()
    faulthandler.register(stack_dump.SIGNAL, file=writer, all_threads=True, chain=False)

    def taken() -> str:
        signal.raise_signal(stack_dump.SIGNAL)
        return os.read(reader, 1 << 20).decode()

    yield taken
    faulthandler.unregister(stack_dump.SIGNAL)
    os.close(reader)
    os.close(writer)


def test_threads_come_with_their_frames_the_outermost_first_and_the_main_one_last(dump: Callable[[], str]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wärter() -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=wärter)
    thread.start()
    entered.wait()
    *others, main = stack_dump.parse(dump())
    leave.set()
    thread.join()
    (waiting,) = [each for each in others if each.ident == thread.ident]
    assert [frame.function for frame in waiting.frames if frame.users] == ["wärter"]
    assert waiting.frames[-1].file == f"{STDLIB}/threading.py"
    assert (main.name, main.ident) == ("MainThread", threading.main_thread().ident)
    assert main.frames[-1].function == "taken"
    assert main.frames[-1].file == __file__
    assert main.frames[-2].function.startswith("test_threads_come")


def test_a_path_is_what_it_is_whatever_stands_in_it(dump: Callable[[], str]) -> None:
    path = '/tmp/a "x", line 3 in é🙂.py'
    found: list[str] = []
    exec(compile("def trap(dump, found):\n    found.append(dump())\ntrap(dump, found)", path, "exec"), locals())
    (frame,) = [frame for frame in stack_dump.parse(found[0])[-1].frames if frame.function == "trap"]
    assert frame == Frame(path, 2, "trap", users=True)


def test_names_can_travel_whatever_bytes_they_are_made_of(dump: Callable[[], str]) -> None:
    found: list[str] = []
    exec(compile("found.append(dump())", os.fsdecode(b"/tmp/\xff.py"), "exec"), locals())
    files = [frame.file for frame in stack_dump.parse(found[0])[-1].frames]
    assert r"/tmp/\udcff.py" in files
    assert stack_dump.parse(found[0].replace(r"\udcff", r"\Uffffffff"))[-1].frames[-2].file == r"/tmp/\Uffffffff.py"
    "".join(files).encode()


def test_newer_pythons_name_the_threads() -> None:
    text = DUMP.replace("86c0 (", "86c0 [loader [2]] (").replace("2b80 (", "2b80 [python3] (")
    assert [thread.name for thread in stack_dump.parse(text)] == ["loader [2]", "0x7f18cc000000", "MainThread"]


def test_of_two_dumps_in_a_row_the_later_one_counts() -> None:
    later = DUMP.replace("line 9 in step", "line 10 in step")
    first, *_, last = stack_dump.parse(DUMP + later)
    assert (first.ident, last.frames[-1].line) == (0x7F18CD7286C0, 10)
    assert stack_dump.parse(DUMP + later) == stack_dump.parse(later)


@pytest.mark.parametrize("length", range(0, len(DUMP) + 1, 7))
def test_a_dump_that_is_cut_anywhere_is_read_as_far_as_it_goes(length: int) -> None:
    whole = {thread.ident: thread.frames for thread in stack_dump.parse(DUMP)}
    for thread in stack_dump.parse(DUMP[:length]):
        innermost = thread.frames[1:]  # the line of the outermost one may be cut
        assert not innermost or whole[thread.ident][-len(innermost) :] == innermost
    for thread in stack_dump.parse(DUMP[length:]):
        assert thread.frames == whole[thread.ident]


def test_nonsense_is_passed_over() -> None:
    text = '\0\n  File "x", line 99999999999999 in f\nThread 0x (most recent call first):\n  <no Python frame>\n  ...\n'
    assert stack_dump.parse(text) == []
    assert stack_dump.parse("Thread 0x00ff (most recent call first):\n" + text)[0].frames == []
    unknown = "Thread 0x00ff (most recent call first):\n  File ???, line ??? in ???\n"
    assert stack_dump.parse(unknown)[0].frames == [Frame("???", 0, "???", users=True)]


def test_where_threads_are_left_out_none_is_taken_for_the_main_one() -> None:
    assert "MainThread" not in [thread.name for thread in stack_dump.parse(DUMP + "...\n")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/train.py", True),
        ("<string>", True),
        ("/opt/library/python/train.py", True),
        (f"{STDLIB}/threading.py", False),
        ("/usr/lib64/python3.13/asyncio/events.py", False),
        ("/venv/lib/python3.12/site-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("<frozen runpy>", False),
        (str(Path(rlinf_async.__file__).parent / "handle.py"), False),
    ],
)
def test_files_of_users_are_told_from_all_others(path: str, expected: bool) -> None:
    assert stack_dump.is_users(path) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rlinf_async/_inspection/blocked_loop_responder.py", False),
        (f"{LAUNCHER}/job.py", False),
        ("examples/train.py", True),
        ("rlinf_async_mine/train.py", True),
    ],
)
def test_links_before_the_framework_hide_neither_its_files_nor_those_of_users(
    tmp_path: Path, name: str, expected: bool
) -> None:
    (tmp_path / "home").symlink_to(Path(rlinf_async.__file__).parents[1])
    path = str(tmp_path / "home" / name)
    assert stack_dump.is_users(path) is expected
    variables: dict[str, Any] = {}
    exec(compile("import sys\nframe = sys._getframe()", path, "exec"), variables)
    assert user_code._is_users(variables["frame"]) is expected
    assert code_frames.has_users([variables["frame"]]) is expected


def test_activities_are_the_threads_that_run_code_of_users() -> None:
    waiting, main = stack_dump.activities(DUMP, 1.5)
    assert (waiting.name, waiting.state) == ("thread 0x7f18cd7286c0", ActivityState.WAITING)
    assert waiting.line == "/home/me/train.py:6 in collect()"
    assert waiting.wait is not None
    assert (waiting.wait.kind, waiting.wait.age, waiting.wait.targets) == ("lock", 1.5, [Target(TargetKind.LOCAL)])
    assert (main.name, main.state, main.wait) == ("thread MainThread", ActivityState.RUNNING, None)
    assert [str(frame) for frame in main.stack] == [
        "/home/me/train.py:30 in <module>()",
        "/home/me/train.py:9 in step()",
    ]


def test_a_process_without_code_of_users_shows_its_main_thread() -> None:
    library = DUMP.replace("/home/me/train.py", f"{STDLIB}/runpy.py")
    (main,) = stack_dump.activities(library, 1.0)
    assert (main.name, main.state, main.line) == ("thread MainThread", ActivityState.RUNNING, None)
    assert stack_dump.activities("", 1.0) == []


def test_a_collective_is_a_wait_for_ranks_that_the_dump_does_not_name() -> None:
    folder = "/venv/lib/python3.11/site-packages/torch/distributed"
    text = (
        "Current thread 0x00007f18ce492b80 (most recent call first):\n"
        f'  File "{folder}/distributed_c10d.py", line 2501 in all_reduce\n'
        f'  File "{folder}/c10d_logger.py", line 81 in wrapper\n'
        '  File "/home/me/train.py", line 30 in step\n'
    )
    (main,) = stack_dump.activities(text, 1.0)
    assert main.wait is not None
    assert (main.wait.kind, main.wait.targets) == ("all_reduce", [])
    assert main.line == "/home/me/train.py:30 in step()"
