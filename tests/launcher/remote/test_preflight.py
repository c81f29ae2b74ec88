"""Preflight program, run by the bootstrap as on a host."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_launcher.remote.bootstrap import BOOTSTRAP, shipment
from rlinf_launcher.remote.preflight import make_run_dir
from tests._support import inherited

CHECKOUT = Path(__file__).parents[3]
MARKER = "m" * 32


def a_request(**changes: Any) -> dict[str, Any]:
    request: dict[str, Any] = {
        "marker": MARKER,
        "run": "0a1b2c3d",
        "node": 3,
        "patience": 20,
        "python_minimum": [3, 11],
        "packages": ["json"],
        "version": "",
        "python_path": "",
        "sync_dir": None,
        "archive_size": 0,
        "cwd": "/",
        "script": None,
        "module": None,
        "iface": None,
    }
    assert set(changes) <= set(request)
    return request | changes


class Far:
    """A started preflight."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def feed(self, text: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def says(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], 20)
        assert readable
        line = self._process.stdout.readline().decode()
        assert line.startswith(MARKER), line + self._process.communicate(timeout=5)[1].decode()
        answer: dict[str, Any] = json.loads(line.removeprefix(MARKER))
        return answer

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def gives_up(self) -> int:
        """Return the exit code; stdin stays open."""
        return self._process.wait(20)

    def ends(self) -> tuple[int, str]:
        """Close stdin; return exit code and output."""
        out, _ = self._process.communicate(timeout=20)
        return self._process.returncode, out.decode()


@contextmanager
def preflight(
    request: dict[str, Any], archive: bytes = b"", wrapped: Sequence[str] = (), **environ: str
) -> Iterator[Far]:
    process = subprocess.Popen(
        [*wrapped, sys.executable, "-I", "-c", BOOTSTRAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], **environ},
    )
    with process:
        far = Far(process)
        try:
            far.feed(b"".join(shipment("preflight", request, archive)))
            yield far
        finally:
            try:
                if process.stdin is not None and not process.stdin.closed:
                    process.stdin.close()
                process.wait(20)  # it cleans up by itself
            finally:
                process.kill()


def look(request: dict[str, Any], archive: bytes = b"", wrapped: Sequence[str] = (), **environ: str) -> dict[str, Any]:
    with preflight(request, archive, wrapped, **environ) as far:
        return far.says()


def missing(answer: dict[str, Any]) -> dict[str, str]:
    return {item["what"]: item["detail"] for item in answer["missing"]}


def tar_of(*members: tuple[str, bytes | str | None]) -> bytes:
    """Return an archive of files (bytes), links (their target) and folders (None)."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o755
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return sink.getvalue()


def test_a_good_host_answers_with_its_facts() -> None:
    answer = look(a_request(), SSH_CONNECTION="10.0.0.1 50000 10.0.0.7 22")
    assert answer["ok"]
    assert answer["missing"] == []
    assert answer["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert answer["executable"] == sys.executable
    assert answer["reached_at"] == "10.0.0.7"
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert answer["uid"] == os.getuid()


def test_it_becomes_the_daemon_on_the_same_stdin_and_stdout(tmp_path: Path) -> None:
    program = "import os; print(os.getcwd(), os.environ['A'], os.environ['PYTHONPATH'], input())"
    order = {"op": "go", "argv": [sys.executable, "-c", program], "env": {"A": "a"}}
    with preflight(a_request(cwd=str(tmp_path), python_path="/p:/q")) as far:
        run_dir = Path(far.says()["run_dir"])
        # What follows the order is the daemon's, although it is there before the daemon is.
        far.feed(json.dumps(order).encode() + b"\n" + b"config\n")
        assert far.ends() == (0, f"{tmp_path} a /p:/q config\n")
    run_dir.rmdir()  # still there, and still empty: it is the daemon's now


def test_a_daemon_that_cannot_be_run_is_told() -> None:
    with preflight(a_request()) as far:
        run_dir = Path(far.says()["run_dir"])
        far.feed(b'{"op": "go", "argv": ["/no/python"], "env": {}}\n')
        answer = far.says()
        assert answer["event"] == "failed"
        assert "No such file" in answer["error"]
        far.ends()
    assert not run_dir.exists()


@pytest.mark.parametrize("farewell", [b'{"op": "no"}\n', b""])
def test_without_an_order_it_removes_what_it_made(farewell: bytes) -> None:
    archive = tar_of(("a/b.py", b"x"))
    with preflight(a_request(sync_dir="/near", archive_size=len(archive)), archive) as far:
        run_dir = Path(far.says()["run_dir"])
        assert (run_dir / "node-3/sync/a/b.py").read_bytes() == b"x"
        far.feed(farewell)
        assert far.ends() == (0, "")
    assert not run_dir.exists()


def test_an_archive_that_is_cut_off_leaves_nothing_behind() -> None:
    archive = tar_of(("a/b.py", b"x"), ("large", os.urandom(3 << 20)))
    with preflight(a_request(sync_dir="/near", archive_size=len(archive)), archive[:-1]) as far:
        base = Path(os.environ["XDG_RUNTIME_DIR"])
        while not (made := list(base.glob("rlinf-0a1b2c3d*/node-3/sync/large"))):
            time.sleep(0.01)
        assert far.ends() == (3, "")
    assert not made[0].parents[2].exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_what_it_made(number: signal.Signals) -> None:
    with preflight(a_request()) as far:
        run_dir = Path(far.says()["run_dir"])
        assert run_dir.is_dir()
        far.send_signal(number)
        assert far.gives_up() == 1
    assert not run_dir.exists()


def test_signals_are_blocked_until_the_guardian_handles_them() -> None:
    program = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])) == [1, 15])"
    order = {"op": "go", "argv": [sys.executable, "-c", program], "env": {}}
    with preflight(a_request()) as far:
        run_dir = Path(far.says()["run_dir"])
        far.feed(json.dumps(order).encode() + b"\n")
        assert far.ends() == (0, "True\n")
    run_dir.rmdir()


def test_a_daemon_without_configuration_removes_its_directory() -> None:
    order = {"op": "go", "argv": [sys.executable, "-P", "-m", "rlinf_launcher.daemon"], "env": {}}
    with preflight(a_request(python_path=str(CHECKOUT))) as far:
        run_dir = Path(far.says()["run_dir"])
        far.feed(json.dumps(order).encode() + b"\n")
        assert far.ends() == (1, "")
    assert not run_dir.exists()


def test_a_missing_order_is_not_awaited_for_ever() -> None:
    with preflight(a_request(patience=0.1)) as far:
        far.says()
        assert far.gives_up() == 0


def test_the_run_directory_is_private_and_each_node_has_one() -> None:
    with preflight(a_request()) as first, preflight(a_request(node=4)) as second:
        places = {first.says()["run_dir"], second.says()["run_dir"]}
        assert {Path(place).name for place in places} in (
            {"rlinf-0a1b2c3d", "rlinf-0a1b2c3d-4"},
            {"rlinf-0a1b2c3d", "rlinf-0a1b2c3d-3"},
        )
        assert {Path(place).stat().st_mode & 0o777 for place in places} == {0o700}


@pytest.mark.parametrize("name", ["gone", pytest.param("x" * 5000, id="too long for a path")])
def test_a_runtime_directory_that_is_not_there_is_no_obstacle(tmp_path: Path, name: str) -> None:
    with tempfile.TemporaryDirectory() as short:
        answer = look(a_request(), XDG_RUNTIME_DIR=str(tmp_path / name), TMPDIR=short)
    assert answer["run_dir"] == f"{short}/rlinf-{os.getuid()}-0a1b2c3d"


def test_the_runtime_directory_suffices_without_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError))
    assert make_run_dir("0a1b2c3d", 3, wants_exec=False) == tmp_path / "rlinf-0a1b2c3d"


def test_a_run_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    taken = f"{tmp_path}/rlinf-{os.getuid()}-0a1b2c3d"
    for path in (taken, f"{taken}-3"):
        Path(path).mkdir()
    answer = look(a_request(), XDG_RUNTIME_DIR=str(tmp_path / "gone"), TMPDIR=str(tmp_path))
    assert missing(answer)["run directory"] == f"[Errno 17] File exists: '{taken}-3'"


def test_a_kernel_without_pidfds_is_told() -> None:
    answer = look(a_request(), wrapped=[sys.executable, inherited.__file__, "deny", "pidfd_open=ENOSYS", "--"])
    release = os.uname().release
    assert missing(answer)["kernel"] == f"Linux {release} refuses pidfd_open there: Function not implemented"


def test_a_python_that_is_too_old_is_asked_nothing_else() -> None:
    answer = look(a_request(python_minimum=[3, 99], packages=["no_such_package"]))
    assert missing(answer) == {"Python": f"{sys.executable} is Python {answer['python']}, and the least is 3.99"}


def test_packages_that_are_not_there_are_named_without_importing_any(tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "trap/inner.py").write_text("")
    names = ["trap", "trap.inner", "trap.absent", "absent.inner", "nowhere"]
    answer = look(a_request(packages=names, python_path=str(tmp_path)))
    assert missing(answer) == {"packages": f"{sys.executable} cannot import trap.absent, absent.inner, nowhere"}


def test_missing_script_module_and_directory_are_named_at_once(tmp_path: Path) -> None:
    answer = look(a_request(cwd="/no/dir", script="/no/dir/train.py", module="pkg.train"))
    assert missing(answer) == {
        "directory": "the working directory /no/dir is not there",
        "script": "/no/dir/train.py is not there",
        "module": f"{sys.executable} finds no module pkg.train in /",
    }
    assert all(item["fix"] for item in answer["missing"])


def test_a_working_directory_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(0)
    as_root = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    told = missing(look(a_request(cwd=f"{tmp_path}/locked", script=f"{tmp_path}/locked/in/a.py"), wrapped=as_root))
    assert told == {
        "directory": f"the working directory {tmp_path}/locked may not be entered",
        "script": f"{tmp_path}/locked/in/a.py is not there",
    }


def test_a_module_is_looked_for_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert look(a_request(cwd=str(tmp_path), module="train"))["ok"]


def test_an_interface_is_turned_into_its_address() -> None:
    assert look(a_request(iface="lo"))["iface_address"] == "127.0.0.1"
    assert "no address there; there are: " in missing(look(a_request(iface="wlan9")))["interface"]


def test_a_synced_folder_comes_first_and_paths_follow_it() -> None:
    archive = tar_of(
        ("src", None), ("src/train.py", b""), ("rlinf_async/__init__.py", b"synced"), ("latest", "src/train.py")
    )
    request = a_request(
        sync_dir="/near/repo",
        archive_size=len(archive),
        cwd="/near/repo/src",
        script="/near/repo/src/train.py",
        packages=["rlinf_async"],
        python_path="/p",
    )
    with preflight(request, archive) as far:
        answer = far.says()
        assert answer["ok"], answer["missing"]
        assert answer["sync"] == answer["run_dir"] + "/node-3/sync"
        assert answer["cwd"] == answer["sync"] + "/src"
        assert answer["python_path"] == [answer["sync"], "/p"]
        assert Path(answer["sync"], "latest").resolve() == Path(answer["sync"], "src/train.py").resolve()


def test_a_working_directory_outside_the_synced_folder_becomes_the_folder() -> None:
    archive = tar_of(("a", b""))
    with preflight(a_request(sync_dir="/near", archive_size=len(archive), cwd="/elsewhere"), archive) as far:
        answer = far.says()
        assert answer["cwd"] == answer["sync"]


@pytest.mark.parametrize(
    "member",
    [("../evil", b"x"), ("/tmp/evil", b"x"), ("a/../../evil", b"x"), ("link", "../../etc"), ("link", "/etc/passwd")],
)
def test_an_archive_that_leads_out_of_the_folder_is_refused(member: tuple[str, bytes | str]) -> None:
    archive = tar_of(("good", b"x"), member)
    answer = look(a_request(sync_dir="/near", archive_size=len(archive)), archive)
    assert "leads out of the folder" in missing(answer)["--sync"]


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    archive = tar_of(("link", "inner"), ("inner", None), ("link/file", b"x"))
    answer = look(a_request(sync_dir="/near", archive_size=len(archive)), archive)
    assert "--sync" in missing(answer)


def test_a_broken_archive_is_read_to_its_end_and_told() -> None:
    archive = b"no archive" * 200_000
    began = time.monotonic()
    answer = look(a_request(sync_dir="/near", archive_size=len(archive)), archive)
    assert "cannot unpack into" in missing(answer)["--sync"]
    assert time.monotonic() - began < 10
