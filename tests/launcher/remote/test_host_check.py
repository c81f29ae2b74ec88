"""Checks across all hosts' answers: clocks, interpreters, addresses."""

from __future__ import annotations

import io
from typing import Any

import pytest

from rlinf_launcher.options import Options
from rlinf_launcher.remote.host import Host, SlurmNode
from rlinf_launcher.remote.host_check import HostCheck
from rlinf_launcher.remote.plan import plan
from rlinf_launcher.report import Report


def an_answer(hostname: str, **changes: Any) -> dict[str, Any]:
    return {
        "missing": [],
        "python": "3.11.7",
        "executable": "/usr/bin/python3",
        "hostname": hostname,
        "machine_id": hostname,
        "boot_id": hostname,
        "skew": 0.0,
        "slurm_node": "",
        "reached_at": "10.0.0.1",
        "iface_address": None,
    } | changes


def an_inspection(*hosts: Host, screen: io.StringIO | None = None, **options: Any) -> HostCheck:
    settings = Options(script="train.py", **options)
    report = Report(screen or io.StringIO())
    nodes = plan(hosts, settings)
    report.begin("", nodes)
    return HostCheck(nodes, settings, "0a1b2c3d", report)


def test_a_python_of_another_kind_is_named_on_both_sides() -> None:
    inspection = an_inspection(Host("localhost"), Host("b"), Host("c"))
    inspection.answers = {
        0: an_answer("a", python="3.11.7", executable="/a/python"),
        1: an_answer("b", python="3.12.1", executable="/b/python"),
        2: an_answer("c", python="3.11.2"),  # another patch fits
    }
    failures = inspection.judge()
    assert set(failures) == {1}
    assert failures[1].startswith("/b/python is Python 3.12.1, the script's is 3.11.7 (/a/python): ")
    assert "fix: name a Python 3.11 there" in failures[1]


@pytest.mark.parametrize(
    ("days", "words"), [(-3, "its clock is 3.0 days behind this machine's"), (400, "its clock is 400.0 days ahead of")]
)
def test_a_clock_outside_the_certificates_time_is_named(days: float, words: str) -> None:
    inspection = an_inspection(Host("localhost"), Host("b"))
    inspection.answers = {0: an_answer("a"), 1: an_answer("b", skew=days * 86400)}
    failures = inspection.judge()
    assert failures[1].startswith(words)
    assert "fix: set the clock" in failures[1]


def test_a_clock_an_hour_off_is_only_a_warning() -> None:
    screen = io.StringIO()
    inspection = an_inspection(Host("localhost"), Host("b"), screen=screen)
    inspection.answers = {0: an_answer("a"), 1: an_answer("b", skew=-3600.0)}
    assert inspection.judge() == {}
    assert screen.getvalue() == "warning: b: its clock is 60.0 minutes behind this machine's\n"


def test_one_machine_under_two_names_is_detected() -> None:
    inspection = an_inspection(Host("localhost"), Host("b"), Host("c"))
    same = {"machine_id": "m", "boot_id": "m"}
    inspection.answers = {0: an_answer("x"), 1: an_answer("b", **same), 2: an_answer("b", **same)}
    assert inspection.judge() == {2: "is the same machine as b\nfix: list it once, with the slots of both"}
    inspection.answers[2] = an_answer("c", **same)  # containers of one machine
    assert inspection.judge() == {}


def test_addresses_come_from_hosts_file_interface_or_route() -> None:
    inspection = an_inspection(Host("localhost"), Host("b", address="10.9.9.9"), Host("c"), Host("d"), iface="eth1")
    inspection.answers = {
        0: an_answer("a", reached_at=None, iface_address="10.1.0.1"),
        1: an_answer("b", iface_address="10.1.0.2"),
        2: an_answer("c", iface_address="10.1.0.3"),
        3: an_answer("d", reached_at="10.2.0.4"),
    }
    assert inspection.binds() == {0: "10.1.0.1", 1: "10.9.9.9", 2: "10.1.0.3", 3: "10.2.0.4"}


def test_this_machines_address_is_the_one_towards_the_others() -> None:
    inspection = an_inspection(Host("localhost"), Host("b"))
    inspection.answers = {0: an_answer("a", reached_at=None), 1: an_answer("b", reached_at="127.0.0.2")}
    assert inspection.binds() == {0: "127.0.0.1", 1: "127.0.0.2"}


def test_one_node_here_has_no_address_at_all() -> None:
    inspection = an_inspection(Host("localhost"))
    inspection.answers = {0: an_answer("a", reached_at="10.0.0.1")}
    assert inspection.binds() == {0: None}


def test_a_host_that_only_a_tunnel_reaches_is_told_so() -> None:
    inspection = an_inspection(Host("b"), Host("c"))
    inspection.answers = {
        0: an_answer("b", reached_at="10.0.0.5"),
        1: an_answer("c", reached_at="127.0.0.1"),
        2: an_answer("here", reached_at=None, iface_address="10.0.0.6"),
    }
    assert inspection.judge() == {
        1: "is reached at 127.0.0.1, which the other nodes cannot reach\nfix: addr=IP after the host, or --iface NAME"
    }


def test_a_silent_host_is_not_blamed_on_the_others() -> None:
    inspection = an_inspection(Host("b"), Host("c"))
    inspection.answers = {2: an_answer("here", reached_at=None)}
    assert inspection.judge() == {}


def test_slurm_nodes_of_one_machine_differ_by_name() -> None:
    hosts = [Host(name, slurm=SlurmNode()) for name in ("n0", "n1", "n2")]
    inspection = an_inspection(*hosts)
    inspection.answers = {rank: an_answer("one", slurm_node=f"n{rank}") for rank in range(3)} | {3: an_answer("one")}
    assert inspection.judge() == {}
    inspection.answers[2]["slurm_node"] = "n1"
    assert inspection.judge() == {2: "is the same machine as n1\nfix: list it once, with the slots of both"}
