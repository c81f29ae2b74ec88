"""Runs that are found by their logs, and the choice of one of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rlinf_launcher.control.recorded_places import choose_recorded, find_recorded
from rlinf_launcher.control.run_places import NoSuchRun
from tests._support.made_snapshots import made_node


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Logs of three runs that have ended, the one with the least id the latest."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    logs = tmp_path / f"rlinf-logs-{os.getuid()}"
    for number, run in enumerate(("cafecafe", "cafebabe", "00000001")):
        (logs / run).mkdir(parents=True)
        os.utime(logs / run, (number, number))
    (logs / "latest").symlink_to("00000001")
    (logs / "mine").mkdir()
    (logs / "deadbeef").symlink_to("cafecafe")
    return [tmp_path]


def test_ended_runs_are_found_by_their_logs_the_latest_last(places: list[Path]) -> None:
    found = [run for run in find_recorded(places) if run.logs and run.logs.is_relative_to(places[0])]
    assert [run.run for run in found] == ["cafecafe", "cafebabe", "00000001"]
    assert not any(run.is_alive for run in found)
    assert "ended at about 1970" in str(found[0])
    assert f"logs in {places[0]}" in str(found[0])


@pytest.mark.parametrize("looks", range(4))
def test_logs_that_are_removed_meanwhile_are_left_out(
    places: list[Path], monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    stat, left = Path.stat, [None] * looks

    def stat_of(path: Path, **options: bool) -> os.stat_result:
        if path.name == "cafebabe":
            if not left and os.path.lexists(path):
                path.rmdir()
            del left[:1]
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat_of)
    assert {"cafecafe", "00000001"} <= {run.run for run in find_recorded(places)}


def test_one_is_meant_by_the_beginning_of_its_id(places: list[Path]) -> None:
    assert choose_recorded("cafec", places).run == "cafecafe"


def test_several_or_none_are_an_error_that_lists_them(places: list[Path]) -> None:
    with pytest.raises(NoSuchRun, match=r"2 runs begin so: name one of them\n  cafecafe.*\n  cafebabe.*"):
        choose_recorded("cafe", places)
    with pytest.raises(NoSuchRun, match=r"there is no run 'ffffffff' of this user.*\n(.*\n)*.*00000001  ended"):
        choose_recorded("ffffffff", places)
    hint = "name the directory of its logs: `rlinf-ctl page ./logs`"
    with pytest.raises(NoSuchRun, match=hint):
        choose_recorded("ffffffff", places, "rlinf-ctl page RUN")
    with pytest.raises(NoSuchRun, match=r"no run of this user is alive.*: name one that has ended(.*\n)*.*00000001"):
        choose_recorded(None, places)


def test_a_directory_of_logs_means_its_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = tmp_path / "mine/recorder"
    recorder.mkdir(parents=True)
    (recorder / "node-0.json").write_bytes(made_node(0, "cafecafe", began=5.0))
    (recorder / "node-1.json").write_bytes(made_node(1, "deadbeef", began=4.0))
    (recorder / "node-2.json").write_bytes(b'{"run": "00000')
    chosen = choose_recorded(str(tmp_path / "mine"), [])
    assert (chosen.run, chosen.logs, chosen.is_alive) == ("cafecafe", tmp_path / "mine", False)
    monkeypatch.chdir(tmp_path)
    assert choose_recorded("mine", []).run == "cafecafe"
    with pytest.raises(NoSuchRun, match="there is no log of a run in"):
        choose_recorded(str(tmp_path), [])
