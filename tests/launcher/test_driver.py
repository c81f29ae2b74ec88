"""The driver script as a child process: signals, exit code, orphans."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_launcher import driver as driver_module
from rlinf_launcher.driver import Driver
from rlinf_launcher.orphans import Orphans

LISTENER = """
import os, signal, sys, time
def heard(number, frame):
    os.write(1, f"{signal.Signals(number).name} ".encode())
    if number == signal.SIGUSR1:
        time.sleep(0.1)
        os._exit(0)
signal.signal(signal.SIGINT, heard)
signal.signal(signal.SIGUSR1, heard)
os.write(1, b"listening ")
while True:
    time.sleep(100)
"""


async def test_a_script_that_cannot_be_watched_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Driver([sys.executable, "-c", LISTENER], os.environ)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


async def hears(shares_terminal: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the signals that reach a script when ``number`` ends the launcher."""
    monkeypatch.setattr(driver_module, "_in_foreground", lambda: shares_terminal)
    out = tmp_path / "out"
    program = f"import os; os.dup2(os.open({str(out)!r}, os.O_WRONLY | os.O_CREAT), 1)\n{LISTENER}"
    driver = Driver([sys.executable, "-c", program], os.environ)
    try:
        async with asyncio.timeout(20):
            while not out.exists() or "listening" not in out.read_text():
                await asyncio.sleep(0.01)
            assert (os.getpgid(driver.pid) == os.getpgrp()) is shares_terminal
            driver.interrupt(number)
            os.kill(driver.pid, signal.SIGUSR1)
            assert await driver.wait() == 0
    finally:
        await driver.close()
    return sorted(out.read_text().split())


@pytest.mark.parametrize(
    ("shares_terminal", "number", "heard"),
    [
        (True, signal.SIGINT, ["SIGUSR1", "listening"]),  # the terminal has told it
        (True, signal.SIGTERM, ["SIGINT", "SIGUSR1", "listening"]),
        (False, signal.SIGINT, ["SIGINT", "SIGUSR1", "listening"]),
    ],
)
async def test_the_script_is_told_exactly_once(
    shares_terminal: bool, number: int, heard: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await hears(shares_terminal, number, tmp_path, monkeypatch) == heard


async def test_a_program_that_cannot_be_run_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    driver = Driver(["/no/python", "train.py"], os.environ)
    assert await driver.wait() == 1
    await driver.close()
    assert capfd.readouterr().err == "rlinf-launch: /no/python cannot be run: No such file or directory\n"


def test_orphans_of_the_run_are_ended_and_nobody_else() -> None:
    program = "from subprocess import *; print(Popen(['sleep', '100'], stdout=DEVNULL, start_new_session=True).pid)"
    leave_one = [sys.executable, "-c", program]
    with subprocess.Popen(["sleep", "100"], env=os.environ | {"RLINF_RUN_ID": "0a1b2c3d"}) as before:
        orphans = Orphans("0a1b2c3d")
        left = [
            int(subprocess.run(leave_one, env=os.environ | {"RLINF_RUN_ID": run}, stdout=subprocess.PIPE).stdout)
            for run in ("0a1b2c3d", "0a1b2c3e")
        ]
        orphans.end()
        assert [Path(f"/proc/{pid}").exists() for pid in left] == [False, True]
        assert before.poll() is None
        before.kill()
        os.kill(left[1], signal.SIGKILL)
        os.waitpid(left[1], 0)


async def test_a_script_inherits_the_descriptors_of_the_users_shell(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit(7)")
    with script.open() as file:
        os.set_inheritable(file.fileno(), True)
        driver = Driver([sys.executable, f"/dev/fd/{file.fileno()}"], os.environ)  # as in rlinf-launch <(make_script)
        try:
            async with asyncio.timeout(20):
                assert await driver.wait() == 7
        finally:
            await driver.close()
