"""The leak checker: each kind of leak is detected and named."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests._support import leaks
from tests._support.fake_hosts import CHECKOUT


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE", 0.1)


@contextlib.contextmanager
def a_file() -> Iterator[str]:
    with tempfile.TemporaryFile(), open("/dev/null") as file:
        yield f"open file {file.fileno()} -> /dev/null"


@contextlib.contextmanager
def a_listener() -> Iterator[str]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield rf"open file {server.fileno()} -> socket:.* 127\.0\.0\.1.*LISTEN|port={server.getsockname()[1]}.*LISTEN"


@contextlib.contextmanager
def a_memfd() -> Iterator[str]:
    number = os.memfd_create("frames")
    yield f"open file {number} -> /memfd:frames"
    os.close(number)


@contextlib.contextmanager
def a_mapped_memfd() -> Iterator[str]:
    number = os.memfd_create("frames")
    os.ftruncate(number, 4096)
    memory = mmap.mmap(number, 4096)
    os.close(number)
    yield "mapped memory /memfd:frames"
    memory.close()


@contextlib.contextmanager
def a_thread() -> Iterator[str]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="reader-of-frames")
    thread.start()
    yield "thread 'reader-of-frames'"
    end.set()
    thread.join()


@contextlib.contextmanager
def a_run_directory() -> Iterator[str]:
    path = Path(os.environ["XDG_RUNTIME_DIR"], "rlinf-0badcafe")
    path.mkdir()
    yield f"file or folder {path}"
    path.rmdir()


@contextlib.contextmanager
def a_run_directory_in_tmp() -> Iterator[str]:
    path = Path(os.environ["TMPDIR"], f"rlinf-{os.getuid()}-0badcafe")
    path.mkdir()
    yield f"file or folder {path}"
    path.rmdir()


@contextlib.contextmanager
def a_shared_memory_name() -> Iterator[str]:
    if os.geteuid():
        pytest.skip("only root can have a /dev/shm of its own")
    path = Path(f"/dev/shm/rlinf-test-{os.getpid()}")
    path.touch()
    yield f"file or folder {path}"
    path.unlink()


@contextlib.contextmanager
def a_process() -> Iterator[str]:
    process = subprocess.Popen(["sleep", "60"])
    yield f"process {process.pid} .*: sleep 60"
    process.wait()


@contextlib.contextmanager
def a_zombie() -> Iterator[str]:
    process = subprocess.Popen(["true"])
    yield f"process {process.pid} .zombie.: .true, not waited for"
    process.wait()


@contextlib.contextmanager
def an_orphan_of_a_run() -> Iterator[str]:
    """A grandchild in a session of its own, whose parent has ended."""
    # It tells its number when it has the variable.
    script = "RLINF_RUN_ID=0badcafe setsid sh -c 'echo $$; exec sleep 60 >/dev/null 2>&1' &"
    pid = int(subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout)
    yield f"process {pid} .*: "
    assert leaks.wait_ended([pid], 5) == []


@pytest.mark.parametrize(
    "make",
    [
        a_file,
        a_listener,
        a_memfd,
        a_mapped_memfd,
        a_thread,
        a_run_directory,
        a_run_directory_in_tmp,
        a_shared_memory_name,
        a_process,
        a_zombie,
        an_orphan_of_a_run,
    ],
)
def test_what_is_left_is_named(make: Callable[[], contextlib.AbstractContextManager[str]]) -> None:
    with contextlib.ExitStack() as leaked:
        with pytest.raises(AssertionError) as failure, leaks.none_left():
            line = leaked.enter_context(make())
        assert re.search(line, str(failure.value))
        assert len(str(failure.value).splitlines()) >= 2


@pytest.mark.parametrize("make", [a_file, a_thread, a_run_directory])
def test_what_is_given_back_in_time_is_no_leak(make: Callable[[], contextlib.AbstractContextManager[str]]) -> None:
    with leaks.none_left(), make():
        pass


def test_a_file_that_is_opened_again_under_another_number_is_no_leak() -> None:
    first = os.open("/dev/zero", os.O_RDONLY)
    with leaks.none_left():
        second = os.open("/dev/zero", os.O_RDONLY)
        os.close(first)
    os.close(second)


def test_a_process_that_is_about_to_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE", 5.0)
    process = subprocess.Popen(["sleep", "60"])
    with leaks.none_left():
        watcher = threading.Thread(target=process.wait)
        watcher.start()
        process.terminate()
    assert process.returncode == -signal.SIGTERM


def test_processes_of_a_run_are_found_by_their_environment() -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "RLINF_RUN_ID": "0badcafe"}) as process:
        while leaks.processes_of_run("0badcafe") != [process.pid]:
            assert process.poll() is None  # until it has called exec
        assert leaks.wait_ended([process.pid], 0) == [process.pid]
        process.kill()
        assert leaks.wait_ended([process.pid], 5) == []


@contextlib.contextmanager
def an_orphan_of_another_run() -> Iterator[None]:
    script = f"env --unset={leaks.SESSION_MARK} RLINF_RUN_ID=0badcafe setsid sleep 60 >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout)
    yield
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def a_shared_memory_name_of_the_machine() -> Iterator[None]:
    path = Path(f"/proc/{os.getppid()}/root/dev/shm/rlinf-test-{os.getpid()}")
    path.touch()
    yield
    path.unlink()


@pytest.mark.parametrize("make", [an_orphan_of_another_run, a_shared_memory_name_of_the_machine])
def test_what_others_of_the_machine_make_is_not_counted(
    make: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    with contextlib.ExitStack() as theirs, leaks.none_left():
        theirs.enter_context(make())


async def test_an_unfinished_task_is_named() -> None:
    before = asyncio.all_tasks()
    task = asyncio.create_task(asyncio.Event().wait(), name="heartbeat")
    assert "heartbeat" in "".join(leaks.leaked_tasks(before))
    task.cancel()
    await asyncio.wait([task])
    assert leaks.leaked_tasks(before) == []


@pytest.fixture
async def task() -> AsyncIterator[asyncio.Task[bool]]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.Event().wait())
        yield task
        task.cancel()


async def test_tasks_of_the_tests_own_fixtures_are_no_leaks(task: asyncio.Task[bool]) -> None:
    assert task in asyncio.all_tasks()


SUITE = {
    "test_each.py": """
import asyncio, logging, subprocess
from tests._support import leaks
leaks.PATIENCE = 0.1
keep = []
def test_clean(): pass
def test_process(): keep.append(subprocess.Popen(["sleep", "60"]))
async def test_task(): keep.append(asyncio.create_task(asyncio.Event().wait(), name="heartbeat"))
def test_complaint(): logging.getLogger("asyncio").error("Task exception was never retrieved")
def test_meant(complaints):
    logging.getLogger("asyncio").error("as planned")
    complaints.clear()
def test_failure_is_not_blamed_twice():
    keep.append(open("/dev/zero"))
    assert False
""",
    "test_together.py": """
import pytest
pytestmark = pytest.mark.shared_cluster
keep = []
@pytest.fixture(scope="module")
def cluster():
    yield
    keep.pop(0).close()
def test_one(cluster): keep.append(open("/dev/zero"))
async def test_two(cluster): keep.append(open("/dev/full"))
""",
}


def test_every_test_and_every_shared_module_is_watched(tmp_path: Path) -> None:
    for name, text in SUITE.items():
        tmp_path.joinpath(name).write_text(text)
    options = ["-c", CHECKOUT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    blamed = re.findall(r"^ERROR \S*::(\w+)", done.stdout, re.MULTILINE)
    said = done.stdout + done.stderr
    assert blamed == ["test_process", "test_task", "test_complaint", "test_two"], said
    assert re.findall(r"^FAILED \S*::(\w+)", done.stdout, re.MULTILINE) == ["test_failure_is_not_blamed_twice"]
    for thing in ["sleep 60", "heartbeat", "never retrieved", "/dev/full"]:
        assert thing in done.stdout
    assert not re.search(r"open file \d+ -> /dev/zero", done.stdout)
