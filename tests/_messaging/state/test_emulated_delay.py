"""Emulated network delay: pairs, shared links, broadcasts."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._messaging.state.emulated_delay import NetEmulation, SharedLink, SharedLinks
from rlinf_async.configuration import NetEmulationConfig

MEGABIT = 125_000


def emulation(*, symmetric: bool = True, pairs: Any = (), lines: Any = ()) -> NetEmulation:
    config = NetEmulationConfig.from_cfg(
        {
            "enabled": True,
            "symmetric": symmetric,
            "crossdc_pairs": [{"src": src, "dst": dst, "delay_ms": delay} for src, dst, delay in pairs],
            "bandwidth_groups": [{"members": members, "bandwidth_mbps": rate} for members, rate in lines],
        }
    )
    assert config is not None
    return NetEmulation(config)


def test_a_pair_that_is_named_is_delayed_and_no_other() -> None:
    network = emulation(pairs=[(["Env:0-1"], ["Rollout:0", "Actor"], 10)])
    assert network.reserve("Env:1", "Rollout:0", 100, now=0.0) == 0.010
    assert network.reserve("Rollout:0", "Env:1", 100, now=0.0) == 0.010
    assert network.reserve("Env:0", "Actor:7", 100, now=0.0) == 0.010
    assert network.reserve("Env:2", "Rollout:0", 100, now=0.0) == 0.0
    assert network.reserve("Env:0", "Rollout:1", 100, now=0.0) == 0.0
    assert network.reserve("Env:0", "Env:1", 10**9, now=0.0) == 0.0


def test_a_pair_holds_in_one_direction_where_it_is_not_symmetric() -> None:
    network = emulation(symmetric=False, pairs=[(["A"], ["B"], 10)])
    assert network.delay("A:0", "B:0") == 0.010
    assert network.delay("B:0", "A:0") is None


def test_ranks_that_are_named_count_before_their_group_and_the_longer_of_two_delays() -> None:
    network = emulation(pairs=[(["A"], ["B"], 10), (["A:1"], ["B"], 50), (["A:1"], ["B"], 20)])
    assert network.delay("A:0", "B:3") == 0.010
    assert network.delay("A:1", "B:3") == 0.050


def test_a_line_carries_one_message_after_the_other_whoever_sends() -> None:
    network = emulation(pairs=[(["Env"], ["Rollout"], 10)], lines=[(["Env:0-1"], 8)])
    assert network.reserve("Env:0", "Rollout:0", 1_000_000, now=5.0) == pytest.approx(1.010)
    assert network.reserve("Env:1", "Rollout:0", 1_000_000, now=5.5) == pytest.approx(1.510)
    assert network.reserve("Env:2", "Rollout:0", 1_000_000, now=5.5) == 0.010
    assert network.reserve("Rollout:0", "Env:0", 1_000_000, now=10.0) == pytest.approx(1.010)


def test_the_slower_line_of_two_ends_gates_a_message() -> None:
    network = emulation(pairs=[(["A"], ["B"], 0)], lines=[(["A"], 80), (["B"], 8)])
    assert network.reserve("A:0", "B:0", 1_000_000, now=0.0) == pytest.approx(1.0)
    assert network.reserve("A:0", "B:0", 1_000_000, now=1.0) == pytest.approx(1.0)


def test_a_broadcast_takes_its_own_line_once_and_each_line_of_receivers_once_and_the_slowest_gates() -> None:
    network = emulation(
        pairs=[(["A"], ["B", "C"], 10), (["A"], ["D"], 40)], lines=[(["A"], 80), (["B", "C"], 8), (["D"], 16)]
    )
    crossing = network.crossing("A:0", ("B:0", "B:1", "C:0", "D:0", "E:0"))
    assert crossing is not None
    assert crossing.delay == 0.040
    assert [line.rate for line in crossing.links] == [80 * MEGABIT, 8 * MEGABIT, 16 * MEGABIT]
    assert network.reserve_broadcast("A:0", ["B:0", "C:0", "E:0"], 1_000_000, now=0.0) == pytest.approx(1.010)
    assert network.reserve_broadcast("A:0", ["E:0", "E:1"], 1_000_000, now=0.0) == 0.0


def test_two_ends_behind_one_line_take_it_once() -> None:
    network = emulation(pairs=[(["A"], ["B"], 0)], lines=[(["A", "B"], 8)])
    assert network.reserve("A:0", "B:0", 1_000_000, now=0.0) == pytest.approx(1.0)


def test_a_line_that_nothing_crosses_is_known_as_such() -> None:
    config = NetEmulationConfig.from_cfg(
        {
            "enabled": True,
            "crossdc_pairs": [{"src": ["A:0"], "dst": ["B"], "delay_ms": 1}],
            "bandwidth_groups": [
                {"members": [member], "bandwidth_mbps": 1} for member in ("A:0", "A:1", "B:3", "B", "C")
            ],
        }
    )
    assert config is not None
    network = NetEmulation(config)
    assert [network.is_idle(group) for group in config.bandwidth_groups] == [False, True, False, False, True]


def test_the_book_of_lines_is_bounded() -> None:
    lines = SharedLinks()
    for number in range(10_000):
        lines.reserve([SharedLink(str(number), 1.0)], 1, now=0.0)
    assert len(lines._free_at) <= 4096
    assert lines.reserve([SharedLink("9999", 1.0)], 1, now=0.0) == 2.0
