"""Runs found by their directories, and distinguished from ended ones."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from rlinf_async._wire.local_socket import listen
from rlinf_launcher.control.run_places import LocalRun, NoSuchRun, choose, find_runs, folders, latest


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rlp-") as name:  # short: a socket's path has 108 bytes
        yield Path(name)


def node(place: Path, name: str, number: int = 0) -> socket.socket:
    """Return a node's socket in the place of a daemon's."""
    directory = place / name / f"node-{number}"
    directory.mkdir(parents=True, mode=0o700)
    return listen(str(directory / "node.sock"))


def test_a_run_lives_while_one_of_its_daemons_listens(place: Path) -> None:
    with node(place, "rlinf-0a0a0a0a"), node(place, f"rlinf-{os.getuid()}-0b0b0b0b"):
        assert [(run.run, run.is_alive) for run in find_runs([place])] == [("0a0a0a0a", True), ("0b0b0b0b", True)]
    assert [run.is_alive for run in find_runs([place])] == [False, False]


def test_nodes_of_one_machine_are_one_run(place: Path) -> None:
    with node(place, "rlinf-0a0a0a0a", 0), node(place, "rlinf-0a0a0a0a-1", 1):
        (run,) = find_runs([place])
        assert sorted(run.sockets) == [0, 1]
        assert find_runs([place / "rlinf-0a0a0a0a"])[0].sockets.keys() == {0}


def test_foreign_runs_and_other_folders_are_not_found(place: Path) -> None:
    with node(place, "rlinf-0a0a0a0"), node(place, f"rlinf-{os.getuid() + 1}-0b0b0b0b"), node(place, "other-0c0c0c0c"):
        (place / "rlinf-0d0d0d0d").mkdir()
        assert find_runs([place, place / "missing"]) == []


def test_a_daemon_with_a_full_backlog_is_alive(place: Path) -> None:
    with node(place, "rlinf-0a0a0a0a") as listener:
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        assert find_runs([place])[0].is_alive
        for sock in waiting:
            sock.close()


def test_the_only_live_run_or_a_prefix_chooses_a_run(place: Path) -> None:
    with node(place, "rlinf-0a0a0a0a"):
        node(place, "rlinf-0b0b0b0b").close()
        assert choose(find_runs([place]), None, [place]).run == "0a0a0a0a"
        with node(place, "rlinf-0c0c0c0c"):
            assert choose(find_runs([place]), "0c0", [place]).run == "0c0c0c0c"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            None,
            [
                "2 runs are alive here: name one of them: `rlinf-ctl stack --run RUN`\n",
                "0a0a0a0a  alive",
                "0c0c0c0c  alive",
            ],
        ),
        ("0", ["2 runs are alive"]),
        ("0b", ["run 0b0b0b0b has ended, and where its logs are is not known\n  fix: `rlinf-ctl bundle DIR`"]),
        ("ff", ["no run 'ff'", "0a0a0a0a  alive"]),
    ],
)
def test_an_ambiguous_or_unknown_run_lists_the_existing(place: Path, wanted: str | None, words: list[str]) -> None:
    node(place, "rlinf-0b0b0b0b").close()
    with node(place, "rlinf-0a0a0a0a"), node(place, "rlinf-0c0c0c0c"), pytest.raises(NoSuchRun) as refused:
        choose(find_runs([place]), wanted, [place], "rlinf-ctl stack --run RUN")
    for each in words:
        assert each in str(refused.value)


def test_an_ended_runs_error_says_when_and_what_shows_it(tmp_path: Path) -> None:
    log = tmp_path / "rollout/rank_0.out"
    log.parent.mkdir()
    log.write_text("the last line")
    os.utime(log, (0, 10**9))
    with pytest.raises(NoSuchRun) as refused:
        choose([LocalRun("0b0b0b0b", 5.0, logs=tmp_path)], "0b", [])
    told = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(10**9))
    assert f"run 0b0b0b0b has ended at about {told}; its logs are in {tmp_path}" in str(refused.value)
    assert "`rlinf-ctl logs --run 0b0b0b0b` prints them; `rlinf-ctl bundle 0b0b0b0b` keeps, and" in str(refused.value)
    with pytest.raises(NoSuchRun, match="2 runs begin with '0', and all have ended"):
        choose([LocalRun("0b0b0b0b", 5.0), LocalRun("0c0c0c0c", 6.0)], "0", [])


def test_an_error_lists_the_live_runs_before_the_latest(tmp_path: Path) -> None:
    runs = [LocalRun(f"{number:08x}", number, is_alive=number == 1) for number in range(30)]
    listed = latest(runs)
    assert [run.since for run in listed] == [*range(21, 30), 1]


def test_without_runs_the_error_names_the_searched_places(place: Path) -> None:
    with pytest.raises(NoSuchRun, match=rf"looked in {place}[\s\S]*--run-dir"):
        choose([], None, [place])


def test_a_folder_that_the_user_names_is_the_only_one(tmp_path: Path) -> None:
    assert folders(tmp_path, {"XDG_RUNTIME_DIR": "/run/user/7"}) == [tmp_path]
    assert folders(None, {"XDG_RUNTIME_DIR": "/run/user/7"})[0] == Path("/run/user/7")


def test_runs_are_looked_for_without_a_temporary_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError))
    assert folders(None, {"XDG_RUNTIME_DIR": "/run/user/7"}) == [Path("/run/user/7"), Path("/tmp")]
