"""``RunSnapshot`` read from the files of a run: complete ones, torn ones, those of other runs, none."""

from __future__ import annotations

import json
import math

from rlinf_async._recorder.state.event_ring import Phase
from rlinf_launcher.control import run_snapshot
from rlinf_launcher.control.run_snapshot import RunSnapshot
from tests._support.made_snapshots import RUN, made_death, made_node, made_ring, made_snapshot


def test_a_run_is_told_by_its_files() -> None:
    run = made_snapshot().recorded()
    assert [ring.identity["process"] for ring in run.rings] == ["driver", "actor:0"]
    assert [event.phase for event in run.rings[1].events] == [Phase.BEGIN, Phase.END, Phase.BEGIN]
    assert [death["process"] for death in run.deaths] == ["actor:0"]
    assert [node["name"] for node in run.nodes] == ["gpu0"]
    assert run.logs == {"actor/rank_0.err": "last words\n"}
    assert run.missing == {"node 1 (gpu1)": "it is lost"}


def test_malformed_files_are_named_and_the_others_used() -> None:
    snapshot = made_snapshot()
    snapshot.files["recorder/1.ring"] = made_ring("driver")[:5000]
    snapshot.files["recorder/3.ring"] = bytes(len(made_ring("driver")))
    snapshot.files["recorder/node-1.json"] = b'{"run": '
    snapshot.files["recorder/node-2.json"] = b"[" * 100_000
    run = snapshot.recorded()
    assert [ring.identity["process"] for ring in run.rings] == ["actor:0"]
    assert run.missing.keys() - snapshot.missing.keys() == {
        "recorder/1.ring", "recorder/3.ring", "recorder/node-1.json", "recorder/node-2.json",
    }  # fmt: skip
    assert "a flight recorder's ring has at least" in run.missing["recorder/1.ring"]


def test_truncated_lines_are_left_out_and_deaths_are_in_order() -> None:
    snapshot = made_snapshot()
    snapshot.files["recorder/deaths-0.jsonl"] += made_death("actor:1", 9.0) + made_death("actor:2", 9.0)[:-20]
    snapshot.files["recorder/deaths-1.jsonl"] = made_death("rollout:0", 6.0)[:30] + made_death("rollout:1", 5.0)
    snapshot.files["recorder/deaths-1.jsonl"] += made_death("rollout:2", math.inf) + made_death("rollout:3", 10**400)
    assert [death["process"] for death in snapshot.recorded().deaths] == ["actor:0", "rollout:1", "actor:1"]


def test_an_earlier_run_in_the_directory_is_left_out() -> None:
    snapshot = made_snapshot()
    snapshot.files["recorder/3.ring"] = made_ring("critic:0", "deadbeef")
    snapshot.files["recorder/node-1.json"] = made_node(1, "deadbeef")
    snapshot.files["recorder/deaths-1.jsonl"] = made_death("critic:0", 3.0, "deadbeef")
    run = snapshot.recorded()
    assert [ring.identity["process"] for ring in run.rings] == ["driver", "actor:0"]
    assert [node["node"] for node in run.nodes] == [0]
    assert [death["process"] for death in run.deaths] == ["actor:0"]


def test_groups_are_told_with_the_node_that_they_are_on() -> None:
    snapshot = made_snapshot()
    lines = [{"run": RUN, "time": 1, "node": node, "group": f"on {node}"} for node in (0, 1)]
    snapshot.files["recorder/groups-0.jsonl"] = "\n".join(map(json.dumps, lines)).encode()
    (node,) = snapshot.recorded().nodes
    assert [group["group"] for group in node["groups"]] == ["on 0"]


def test_nodes_with_remote_files_are_named_with_host_and_path() -> None:
    snapshot = RunSnapshot(RUN, 5.0)
    peers = [{"node": node, "name": f"gpu{node}", "host": f"host{node}", "logs": f"/logs{node}"} for node in range(3)]
    snapshot.add("recorder/node-0.json", made_node(0, peers=peers))
    snapshot.add("recorder/node-2.json", made_node(2, peers=peers))
    assert snapshot.lost_nodes() == {"node 1 (gpu1)": "its files are on host1, in /logs1"}


def test_what_does_not_fit_is_named() -> None:
    snapshot = RunSnapshot(RUN, 5.0, _room=10)
    snapshot.add("daemon_0.log", bytes(8))
    snapshot.add("daemon_1.log", bytes(8))
    snapshot.add("daemon_2.log", bytes(2))
    assert snapshot.files.keys() == {"daemon_0.log", "daemon_2.log"}
    assert snapshot.missing == {"daemon_1.log": f"a bundle has up to {run_snapshot.MAX_BYTES >> 30} GiB"}
