"""Black boxes of nodes: lines that survive kills and full disks, without secrets."""

from __future__ import annotations

import json
from pathlib import Path

from rlinf_async._core import operations
from rlinf_launcher.daemon.black_box import BlackBox

CONFIG = {"name": "gpu02", "env": {"HF_TOKEN": "hidden", "MODE": "fast"}}
ENVIRONMENT = {"HF_TOKEN": "hidden", "MODE": "fast", "NCCL_DEBUG": "INFO", "HOME": "/root"}


def spawn(config: str = "") -> operations.Spawn:
    worker = {"rank": 3, "env": {"VISIBLE_DEVICES": "0,1"}}
    fields = dict.fromkeys(operations.Spawn.checks) | {"group": "actor", "workers": [worker], "config": config}
    return operations.Spawn(**fields)


def test_facts_groups_and_deaths_are_there_once_they_are_told(tmp_path: Path) -> None:
    box = BlackBox(tmp_path, "cafecafe", 1)
    box.describe({"hostname": "vm", "cpus": 2}, CONFIG, ENVIRONMENT, [{"node": 0}])
    box.launched(spawn('{"cluster": {"num_nodes": 2}}'), [[5, 4711, "log"]])
    box.death("actor:3", 4711, "was killed by SIGKILL", ["last", "words"])
    node = json.loads((tmp_path / "recorder/node-1.json").read_text())
    assert (node["run"], node["node"], node["name"], node["host"], node["peers"]) == (
        "cafecafe", 1, "gpu02", "vm", [{"node": 0}],
    )  # fmt: skip
    assert node["config"]["env"] == {
        "HF_TOKEN": "*** (length 6)", "MODE": "*** (length 4)", "NCCL_DEBUG": "INFO", "HOME": "/root",
    }  # fmt: skip
    assert {"python", "torch"} <= node["versions"].keys()
    group = json.loads((tmp_path / "recorder/groups-1.jsonl").read_text())
    assert group["workers"] == [{"rank": 3, "endpoint": (1 << 32) + 5, "pid": 4711, "devices": ["0", "1"]}]
    assert group["config"] == {"cluster": {"num_nodes": 2}}
    death = json.loads((tmp_path / "recorder/deaths-1.jsonl").read_text())
    assert (death["process"], death["text"], death["last_words"]) == (
        "actor:3", "was killed by SIGKILL", ["last", "words"],
    )  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "recorder").iterdir()} == {0o600}


def test_a_truncated_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    box = BlackBox(tmp_path, "cafecafe", 0)
    box.death("actor:0", 1, "exited")
    path = tmp_path / "recorder/deaths-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    box.death("actor:1", 2, "exited")
    assert json.loads(path.read_text().splitlines()[-1])["process"] == "actor:1"


def test_a_disk_that_takes_nothing_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "recorder").write_text("")  # no directory can be made there
    box = BlackBox(tmp_path, "cafecafe", 0)
    box.describe({}, CONFIG, {}, [])
    box.launched(spawn(), [[5, 4711, "log"]])
    box.death("actor:0", 1, "exited")
