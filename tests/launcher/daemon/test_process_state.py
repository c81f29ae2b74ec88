"""States of real children, from ``/proc``."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlinf_launcher.daemon.leftovers import session_of
from rlinf_launcher.daemon.process_state import (
    catches,
    image_of,
    is_stopped,
    private_bytes,
    resident_bytes,
    state_of,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits, and becomes ``cat`` after a line on its stdin."""
    program = "import os; print(flush=True); os.read(0, 1); os.execvp('cat', ['cat'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_that_waits_is_nothing_unusual(child: subprocess.Popen[bytes]) -> None:
    assert state_of(child.pid, image_of(child.pid)) == ""
    assert state_of(child.pid, None) == ""


def test_a_part_of_the_memory_is_a_processs_own(child: subprocess.Popen[bytes]) -> None:
    assert 0 < private_bytes(child.pid) < resident_bytes(child.pid)


def test_a_stopped_process_is_told_from_one_that_has_ended(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert (state_of(child.pid, image_of(child.pid)), is_stopped(child.pid)) == ("stopped (T)", True)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (state_of(child.pid, None), is_stopped(child.pid)) == ("ended (Z)", False)
    assert session_of(child.pid) == os.getsid(0), "a daemon finds by it what a dead worker has left"
    child.wait()
    assert session_of(child.pid) == 0
    assert (state_of(child.pid, None), is_stopped(child.pid)) == ("ended", False)
    assert image_of(child.pid) is None


def test_a_shortage_of_descriptors_is_not_a_processs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("builtins.open", fail)
    told = state_of(os.getpid(), None)
    monkeypatch.undo()
    assert told == ""


def test_a_process_that_has_become_another_program_is_told(child: subprocess.Popen[bytes]) -> None:
    image = image_of(child.pid)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\nnow it is cat\n")
    child.stdin.flush()
    child.stdout.readline()
    assert state_of(child.pid, image) == "exec'ed: it is cat now"
    assert state_of(child.pid, None) == ""


def test_a_process_name_cut_within_a_letter_is_read() -> None:
    program = "open('/proc/self/comm', 'wb').write('обучение'.encode()); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert state_of(process.pid, image_of(process.pid)) == ""
        assert catches(process.pid, signal.SIGINT)
        process.kill()


def test_only_signals_with_a_handler_are_caught(child: subprocess.Popen[bytes]) -> None:
    assert catches(child.pid, signal.SIGINT)
    assert not catches(child.pid, signal.SIGPIPE)  # ignored
    assert not catches(child.pid, signal.SIGUSR1)
    assert not catches(child.pid, signal.SIGRTMAX)
    child.kill()
    child.wait()
    with pytest.raises(OSError, match="No such"):
        catches(child.pid, signal.SIGINT)
