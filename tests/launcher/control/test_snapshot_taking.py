"""Looks at runs that do not answer: whether they have ended, and which of their files are missing."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async._wire.local_socket import listen
from rlinf_launcher.control.bundle_file import read_bundle
from rlinf_launcher.control.run_bundle import show_bundle
from rlinf_launcher.control.run_places import LocalRun, choose, listens
from rlinf_launcher.control.snapshot_taking import take_snapshot
from rlinf_launcher.control.text_output import TextOutput
from tests._support.made_snapshots import RUN, made_group, made_node, made_ring


@pytest.fixture
def run() -> Iterator[LocalRun]:
    """A run with files beside its logs, and with the place of a socket that nothing listens at."""
    with tempfile.TemporaryDirectory(prefix="rlp-") as name:  # short: a socket's path has 108 bytes
        logs = Path(name) / "logs"
        (logs / "recorder").mkdir(parents=True)
        (logs / "recorder/1.ring").write_bytes(made_ring("driver"))
        (logs / "recorder/node-0.json").write_bytes(made_node(0, host=socket.gethostname()))
        (logs / "recorder/groups-0.jsonl").write_bytes(made_group("actor"))
        (logs / "actor").mkdir()
        (logs / "actor/rank_0.out").write_bytes(b"")
        yield LocalRun(RUN, 1.0, {0: Path(name) / "node.sock"}, logs=logs)


@pytest.mark.parametrize(
    ("daemon", "elsewhere", "state", "told"),
    [
        ("is gone", "", False, "ended"),
        ("has ended since it was found", "", False, "ended"),
        ("does not answer", "", None, "not known to have ended"),
        ("accepts nothing", "", None, "not known to have ended"),
        ("is gone", "gpu7", None, "not known to have ended"),
    ],
)
async def test_a_run_has_ended_only_where_no_daemon_of_it_may_live(
    run: LocalRun, daemon: str, elsewhere: str, state: bool | None, told: str
) -> None:
    assert run.logs is not None
    peer = {"node": 0, "name": "gpu7", "host": elsewhere, "logs": "/logs"}
    (run.logs / "recorder/node-0.json").write_bytes(made_node(0, host=socket.gethostname(), peers=[peer]))
    listener = listen(str(run.sockets[0])) if daemon in ("does not answer", "accepts nothing") else None
    run.is_alive = daemon != "is gone"
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    if listener is not None and daemon == "accepts nothing":
        listener.listen(0)
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(str(run.sockets[0]))
    screen, path = io.StringIO(), run.logs.parent / "kept.zip"
    try:
        await show_bundle(run, TextOutput(screen, as_json=False), path, 0.2)
    finally:
        for sock in (*waiting, *filter(None, [listener])):
            sock.close()
    assert f"run {RUN} ({told}), 1 flight recorders" in screen.getvalue()
    kept = read_bundle(path)
    assert kept.is_alive is state
    assert list(kept.missing) == (["its daemons"] if run.is_alive else [])
    assert ("stopped" in kept.missing.get("its daemons", "")) == (listener is not None)


def test_a_shortage_of_this_process_is_not_the_end_of_a_run(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*args: object, **options: object) -> None:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr("rlinf_launcher.control.run_places.connect", connect)
    assert listens(run.sockets[0])


def test_a_run_with_nodes_on_other_machines_has_ended_here_alone(run: LocalRun) -> None:
    assert run.logs is not None
    peer = {"node": 1, "name": "gpu7", "host": "gpu7", "logs": "/logs"}
    (run.logs / "recorder/node-0.json").write_bytes(made_node(0, host=socket.gethostname(), peers=[peer]))
    with pytest.raises(Exception, match=rf"run {RUN} has ended here at about .*, and may go on at gpu7; its logs"):
        choose([run], RUN, [])


@pytest.mark.parametrize(
    ("broken", "missing"),
    [
        (".", {"its flight recorders": "{}/recorder: Not a directory"}),
        ("recorder", {"its flight recorders": "{}/recorder: Not a directory"}),
        ("recorder/1.ring", {"its flight recorders": "there are none in {}/recorder"}),
        ("actor", {"logs of group 'actor'": "{}/actor: Not a directory"}),
        ("actor/rank_0.out", {"logs of group 'actor'": "there are none in {}/actor"}),
    ],
)
async def test_recorders_and_logs_that_are_not_there_are_named(
    run: LocalRun, broken: str, missing: dict[str, str]
) -> None:
    assert run.logs is not None
    place = run.logs / broken
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if "/" not in broken:
        place.write_text("a file in the place of a folder")
    snapshot = await take_snapshot(run, 1)
    assert snapshot.missing == {what: why.format(run.logs) for what, why in missing.items()}
