"""The daemon's UNIX socket: permissions of its directory, credentials of its peers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlinf_async._wire.local_socket import check_peer, connect, listen
from rlinf_async.errors import AuthError


def test_a_socket_in_an_open_directory_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    listener = listen(str(tmp_path / "s"))
    with pytest.raises(AuthError, match="mode 0700"):
        connect(str(tmp_path / "s"))
    listener.close()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_the_kernel_vouches_for_the_peer(private: Path) -> None:
    listener = listen(str(private / "s"))
    assert (private / "s").stat().st_mode & 0o777 == 0o600
    near = connect(str(private / "s"))
    far, _ = listener.accept()
    assert check_peer(far) == os.getpid()
    for sock in (near, far, listener):
        sock.close()


@pytest.mark.parametrize("name", ["x" * 100, "\udcff"], ids=["long", "no UTF-8"])
def test_a_socket_listens_in_any_directory(private: Path, name: str) -> None:
    folder = private / name
    folder.mkdir(mode=0o700)
    path = folder / "node.sock"
    with listen(str(path)) as listener, connect(str(path)), listener.accept()[0]:
        assert path.is_socket()
