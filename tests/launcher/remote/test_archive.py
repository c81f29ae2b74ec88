"""Archives of ``--sync``."""

from __future__ import annotations

import errno
import io
import os
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rlinf_async.errors import ConfigError
from rlinf_launcher.remote import archive
from rlinf_launcher.remote.archive import Archive, pack


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names_of(packed: Archive) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        return {member.name for member in tar if not member.isdir()}


def git(folder: Path, *words: str) -> None:
    who = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "e"}
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **who}
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, env=environ)


def test_caches_and_environments_stay_at_home(tmp_path: Path) -> None:
    fill(tmp_path, "train.py", "a/b.py", "a/b.pyc", "a/__pycache__/b.pyc", ".venv/bin/x", "node_modules/y", ".hidden")
    packed = pack(tmp_path)
    assert names_of(packed) == {"train.py", "a/b.py", ".hidden"}
    assert packed.files == 3
    assert packed.warning is None


def test_in_a_checkout_gitignore_decides(tmp_path: Path) -> None:
    fill(tmp_path, "kept.py", "new.py", "gone.py", "data/big.bin", "a b/ü.py")
    (tmp_path / ".gitignore").write_text("data/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "kept.py", "gone.py", ".gitignore")
    (tmp_path / "gone.py").unlink()
    assert names_of(pack(tmp_path)) == {"kept.py", "new.py", ".gitignore", "a b/ü.py"}
    assert names_of(pack(tmp_path / "a b")) == {"ü.py"}
    # asked for by name, although git keeps all of it out
    assert names_of(pack(tmp_path / "data")) == {"big.bin"}


def test_a_checkout_unreadable_for_git_is_shipped_whole(tmp_path: Path) -> None:
    fill(tmp_path, ".gitignore", "a.py", "data.bin")
    (tmp_path / ".gitignore").write_text("data.bin\n")
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")  # as of a worktree in a container
    packed = pack(tmp_path)
    assert "data.bin" in names_of(packed)
    assert packed.warning is not None
    told = f"--sync ships all files of {tmp_path}, whatever .gitignore says: fatal: not a git repository"
    assert told in packed.warning


def test_what_cannot_travel_is_left_out_and_named(tmp_path: Path) -> None:
    fill(tmp_path, "a/file")
    (tmp_path / "inside").symlink_to("a/file")
    (tmp_path / "a/up").symlink_to("../inside")
    (tmp_path / "outside").symlink_to("../elsewhere")
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
    os.link(tmp_path / "a/file", tmp_path / "a/hard")
    packed = pack(tmp_path)
    assert names_of(packed) == {"a/file", "a/hard", "inside", "a/up"}
    assert set(packed.left_out) == {"outside", "absolute", "fifo", "socket"}
    assert packed.warning is not None
    assert "--sync leaves out" in packed.warning
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        assert tar.getmember("a/hard").isfile()  # the far side takes no hard links


def test_a_large_archive_names_its_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGE_BYTES", 1000)
    (tmp_path / "model.bin").write_bytes(os.urandom(2000))
    fill(tmp_path, "small.py")
    warning = pack(tmp_path).warning
    assert warning is not None
    assert "the largest files are model.bin" in warning
    assert ".gitignore" in warning


def test_a_file_that_vanishes_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_names", lambda folder, unread: iter(["gone.py"]))
    with pytest.raises(ConfigError, match=r"--sync .*gone\.py: No such file"):
        pack(tmp_path)


def test_an_unreadable_folder_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(path: str) -> Any:
        if path.endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path)

    fill(tmp_path, "a.py", "secret/b.py")
    really = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)  # root may read everything
    with pytest.raises(ConfigError, match=r"--sync .*/secret: Permission denied"):
        pack(tmp_path)


def test_a_shrinking_file_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "run.log")
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result([0] * 6 + [1 << 20] + [0] * 3))
    with pytest.raises(ConfigError, match=r"--sync .*/run.log: unexpected end of data"):
        pack(tmp_path)
