from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlinf_async.errors import LaunchError
from rlinf_launcher.daemon.worker_env import prepare

NODE = {"PATH": "/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/lib"}


def test_a_group_overrides_the_worker_and_that_the_node() -> None:
    place = prepare(NODE, {"B": "group", "C": "group"}, {"B": "node", "HOME": "/home"}, None, "node0", {})
    assert place.variables({"C": "worker", "RANK": "1"}) == {
        **NODE,
        "HOME": "/home",
        "B": "group",
        "C": "group",
        "RANK": "1",
    }


def test_configured_path_lists_precede_the_nodes() -> None:
    said = {"PATH": "/opt/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    place = prepare(NODE, {"LD_LIBRARY_PATH": "/mine"}, said, None, "node0", {})
    found = place.variables({})
    assert (found["PATH"], found["LD_LIBRARY_PATH"]) == ("/opt/bin:/bin", "/mine")
    assert place.special == {"PATH": "/opt/bin:/bin", "LD_LIBRARY_PATH": "/mine"}
    mode = {"RLINF_PATH_ENV_MERGE_MODE": "override"}
    assert prepare({**NODE, **mode}, {}, said, None, "", {}).variables({})["PATH"] == "/opt/bin"


def test_a_groups_own_folders_come_before_the_scripts() -> None:
    assert prepare(NODE, {}, {"PYTHONPATH": "/a:/b"}, None, "", {}).paths == ("/a", "/b")
    assert prepare(NODE, {"PYTHONPATH": "/c"}, {"PYTHONPATH": "/a"}, None, "", {}).paths == ("/c",)
    assert prepare({**NODE, "PYTHONPATH": "/n"}, {}, {}, None, "", {}).paths == ()


def test_a_scripts_changes_rank_between_node_and_worker() -> None:
    changes = {
        b"NEW": b"\xff",
        b"HOME": None,
        b"ABSENT": None,
        b"PATH": b"/venv/bin:/bin",
        b"LD_LIBRARY_PATH": None,
        b"RANK": b"9",
        b"A": b"script",
        b"B": b"script",
    }
    place = prepare(NODE, {"B": "group"}, {"PATH": "/opt/bin"}, None, "", changes)
    assert place.variables({"A": "worker", "RANK": "1"}) == {
        "PATH": "/opt/bin:/venv/bin:/bin",
        "NEW": "\udcff",
        "RANK": "1",
        "A": "worker",
        "B": "group",
    }
    assert prepare(NODE, {}, {}, None, "", {b"PATH": NODE["PATH"].encode()}).own == NODE
    override = {b"RLINF_PATH_ENV_MERGE_MODE": b"override", b"PATH": b"/x"}
    assert prepare(NODE, {}, {}, None, "", override).own["PATH"] == "/x"


def test_an_interpreter_must_be_there(tmp_path: Path) -> None:
    assert prepare(NODE, {}, {}, sys.executable, "node0", {}).python == sys.executable
    assert prepare(NODE, {}, {}, None, "node0", {}).python is None
    for missing in (tmp_path / "python", tmp_path):
        with pytest.raises(LaunchError, match=rf"python_interpreter_path '{missing}' is no program on node0"):
            prepare(NODE, {}, {}, str(missing), "node0", {})


def test_the_network_interface_is_set_for_each_library_without_one() -> None:
    place = prepare({**NODE, "RLINF_COMM_NET_DEVICES": "ib0"}, {"GLOO_SOCKET_IFNAME": "eth1"}, {}, None, "", {})
    found = place.variables({"ACCELERATOR_TYPE": "NPU"})
    assert (found["GLOO_SOCKET_IFNAME"], found["HCCL_SOCKET_IFNAME"]) == ("eth1", "ib0")
    assert "NCCL_SOCKET_IFNAME" not in place.variables({"ACCELERATOR_TYPE": "NO_ACCEL"})
