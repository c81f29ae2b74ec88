"""Plan of a run: nodes, their order and devices."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlinf_async.errors import ConfigError
from rlinf_launcher.cli.hosts_file import parse_hosts
from rlinf_launcher.cli.parsing import parse
from rlinf_launcher.remote.host import Host, SlurmNode
from rlinf_launcher.remote.local import LocalConnector
from rlinf_launcher.remote.plan import chosen_hosts, driver_python, plan
from rlinf_launcher.remote.srun import SrunConnector


def names(text: str) -> list[str]:
    return [node.name for node in plan(parse_hosts(text), parse(["x.py"], {})) if not node.hidden]


def test_ranks_follow_the_list_unless_all_hosts_name_theirs() -> None:
    assert names("a\nb\nc\n") == ["a", "b", "c"]
    ranked = "a env.RLINF_NODE_RANK=2\nb env.RLINF_NODE_RANK=0\nc env.RLINF_NODE_RANK=1\n"
    assert names(ranked) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a env.RLINF_NODE_RANK=0\nb\n", r"is set for some hosts \(a: 0\), and not for b"),
        ("a env.RLINF_NODE_RANK=0\nb env.RLINF_NODE_RANK=0\n", "must be unique and run from 0 to 1, got a: 0, b: 0"),
        ("a env.RLINF_NODE_RANK=0\nb env.RLINF_NODE_RANK=2\n", "must be unique and run from 0 to 1, got a: 0, b: 2"),
        ("a env.RLINF_NODE_RANK=first\n", "must be unique and run from 0 to 0, got a: first"),
    ],
)
def test_ranks_that_are_none_are_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        names(text)


def test_devices_are_declared_on_every_host_that_says_nothing_itself() -> None:
    hosts = parse_hosts("a\nb gpus=0\nc fake_gpus=2\n")
    chosen = chosen_hosts(hosts, parse(["--fake-gpus", "8", "x.py"], {}))
    assert [(host.fake_gpus, host.gpus) for host in chosen] == [(8, None), (None, ("0",)), (2, None)]
    local = chosen_hosts((), parse(["--local-nodes", "2", "x.py"], {"RLINF_FAKE_GPUS": "4"}))
    assert [host.fake_gpus for host in local] == [4, 4]
    with pytest.raises(ConfigError, match="'1025' is not a number from 0 to 1024"):
        parse(["--fake-gpus", "1025", "x.py"], {})


def here(words: Sequence[str], text: str = "localhost\n") -> list[tuple[str, str]]:
    """Return the nodes of this machine, with their interpreters."""
    nodes = plan(parse_hosts(text), parse([*words, "x.py"], {}))
    return [(node.name, node.connector.python) for node in nodes if isinstance(node.connector, LocalConnector)]


def test_the_named_interpreter_is_that_of_local_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    own = str(tmp_path / "python")
    assert here(["--python", own]) == [("localhost", own)]
    assert here(["--python", "~/python"]) == [("localhost", own)]
    assert here([], "localhost python=~/python\n") == [("localhost", own)]
    assert here(["--python", "~/python", "--local-nodes", "2"]) == [("local0", own), ("local1", own)]
    assert driver_python(parse(["--python", "~/python", "x.py"], {})) == own


def test_a_missing_interpreter_is_not_replaced_by_another() -> None:
    assert here(["--python", "/no/python"]) == [("localhost", "/no/python")]
    # The script's own machine need not have what the nodes have, where it is none of them.
    assert here(["--python", "/no/python"], "far\n") == [("localhost", sys.executable)]


def test_a_prologue_may_bring_the_interpreter_that_is_named() -> None:
    assert here(["--python", "python3", "--prologue", "true"]) == [("localhost", "python3")]


def test_in_a_slurm_job_the_own_node_needs_no_srun() -> None:
    hosts = [Host("n0", slurm=SlurmNode(is_here=True)), Host("n1", slurm=SlurmNode())]
    nodes = plan(hosts, parse(["x.py"], {}))
    assert [type(node.connector) for node in nodes] == [LocalConnector, SrunConnector]
    outside = plan(hosts[1:], parse(["x.py"], {}))
    assert [(node.is_here, node.hidden) for node in outside] == [(False, False), (True, True)]
