"""Measured numbers as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benches import measure
from benches.contestant import ContestantError, peer
from benches.measure import BEST, ITSELF, LIMIT, OURS, Case, Target, all_of, alternate, percentile
from benches.options import parse

CASE = Case("call", "one_call", "us", 1e6, limit="an echo", targets=[Target(0.8, "xoscar"), Target(0.2, "ray")])


@pytest.mark.parametrize(("rank", "expected"), [(50, 5), (90, 9), (99, 10), (100, 10), (0, 1), (10, 1), (11, 2)])
def test_a_percentile_is_a_sample_that_was_measured(rank: float, expected: int) -> None:
    assert percentile([10, 3, 8, 1, 5, 2, 9, 4, 7, 6], rank) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_contestants_alternate_and_every_other_round_goes_back() -> None:
    order: list[str] = []

    def measuring(name: str) -> Callable[[], Sequence[float]]:
        def one() -> Sequence[float]:
            order.append(name)
            return [float(len(order))]

        return one

    rounds = alternate(2, {"a": measuring("a"), "b": measuring("b")}, warm_up=True)
    assert "".join(order) == "ba" + "ab" + "ba"
    assert rounds == [{"a": [3.0], "b": [4.0]}, {"a": [6.0], "b": [5.0]}]


def test_a_ratio_compares_within_its_round_and_not_across_them() -> None:
    rounds = [  # the machine is ten times slower in the last one
        {OURS: [1.0], "xoscar": [2.0]},
        {OURS: [1.0], "xoscar": [2.0]},
        {OURS: [10.0], "xoscar": [20.0]},
        {OURS: [10.0], "xoscar": [20.0]},
    ]
    row = Case("call", "one_call", "s").row(rounds)
    assert row["peers"]["xoscar"]["ratio"] == 0.5
    assert row["median"] == 5.5


def test_a_row_says_what_was_measured_beside_what() -> None:
    rounds = [{OURS: [100e-6, 101e-6, 999e-6], "xoscar": [200e-6], "ray": [1e-3], LIMIT: [10e-6]}]
    row = json.loads(json.dumps(CASE.row(rounds)))
    assert row == {
        "bench": "call", "case": "one_call", "unit": "us", "median": 101.0, "p50": 101.0, "p90": 999.0, "p99": 999.0,
        "n": 3, "rounds": 1, "limit": {"name": "an echo", "value": 10.0}, "ratio_to_limit": 10.1,
        "peers": {"xoscar": {"median": 200.0, "ratio": 0.505}, "ray": {"median": 1000.0, "ratio": 0.101}},
        "target": "<= 0.8 x xoscar and <= 0.2 x ray", "met": True, "ahead": True,
    }  # fmt: skip


def test_a_row_is_not_ahead_when_one_peer_is_better() -> None:
    row = CASE.row([{OURS: [1.0], "xoscar": [2.0], "ray": [0.9], LIMIT: [0.1]}])
    assert row["ahead"] is False
    assert row["met"] is False


def test_of_rates_more_is_better() -> None:
    case = Case("call", "pipelined", "calls/s", more_is_better=True, targets=[Target(5, "xoscar", at_least=True)])
    assert case.row([{OURS: [50.0], "xoscar": [10.0]}])["met"] is True
    assert case.row([{OURS: [49.0], "xoscar": [10.0]}])["met"] is False
    assert case.row([{OURS: [49.0], "xoscar": [10.0]}])["ahead"] is True
    assert case.row([{OURS: [9.0], "xoscar": [10.0]}])["ahead"] is False


def test_a_target_against_somebody_who_was_not_measured_is_left_open() -> None:
    row = CASE.row([{OURS: [1.0], LIMIT: [0.1]}])
    assert (row["met"], row["ahead"], row["peers"]) == (None, None, {})
    assert CASE.row([{OURS: [1.0], "xoscar": [2.0], LIMIT: [0.1]}])["met"] is True


def test_a_bound_on_ours_itself_is_in_the_unit_that_was_measured() -> None:
    case = Case("channel", "small", "kitems/s", 1e-3, True, targets=[Target(50_000, ITSELF, at_least=True)])
    row = case.row([{OURS: [60_000.0]}])
    assert (row["median"], row["target"], row["met"]) == (60.0, ">= 50000", True)
    assert case.row([{OURS: [49_000.0]}])["met"] is False


def test_what_stands_beside_is_neither_a_peer_nor_the_limit() -> None:
    case = Case("send", "far", "GB/s", 1.0, True, beside={"tcp": "a raw socket"}, targets=[Target(1, BEST)])
    row = case.row([{OURS: [2.0], "tcp": [4.0]}])
    assert row["beside"] == {"tcp": {"name": "a raw socket", "value": 4.0, "ratio": 0.5}}
    assert (row["peers"], row["ahead"], row["met"], row["limit"]) == ({}, None, None, None)


@pytest.mark.parametrize(("factor", "met"), [(0.5, True), (0.4, False)])
def test_a_target_may_name_what_stands_beside_and_the_best_peer_is_still_a_peer(factor: float, met: bool) -> None:
    targets = [Target(factor, "one tensor"), Target(1, BEST)]
    case = Case("weights", "many", "ms", beside={"one tensor": "the same bytes"}, targets=targets)
    assert case.row([{OURS: [1.0], "one tensor": [2.0], "ray": [3.0]}])["met"] is met
    assert case.row([{OURS: [3.0], "one tensor": [9.0], "ray": [2.0]}])["met"] is False


@pytest.mark.parametrize(("at_least", "factor", "met"), [(False, 0.5, True), (False, 0.4, False), (True, 0.2, True)])
def test_the_best_peer_is_the_one_that_is_hardest_to_beat(at_least: bool, factor: float, met: bool) -> None:
    target = Target(factor, BEST, at_least=at_least)
    assert target.met({"ray": 0.2, "xoscar": 0.5, LIMIT: 3.0}) is met
    assert target.met({LIMIT: 3.0}) is None


def test_a_contestant_that_failed_in_some_round_is_left_out() -> None:
    rounds = [{OURS: [1.0], "ray": [2.0], "xoscar": [2.0]}, {OURS: [1.0], "ray": [], "xoscar": [2.0]}]
    assert list(CASE.row(rounds)["peers"]) == ["xoscar"]


def test_a_peer_is_compared_in_the_rounds_in_which_it_took_part() -> None:
    row = CASE.row([{OURS: [1.0], "ray": [10.0]}, {OURS: [3.0], "xoscar": [4.0]}])
    assert row["peers"] == {"ray": {"median": 10e6, "ratio": 0.1}, "xoscar": {"median": 4e6, "ratio": 0.75}}
    assert row["median"] == 2e6


@pytest.mark.parametrize("rounds", [[], [{"ray": [1.0]}], [{OURS: []}]])
def test_there_is_no_row_without_ours(rounds: list[measure.Round]) -> None:
    with pytest.raises(ValueError, match="one_call: rlinf_async was not measured"):
        CASE.row(rounds)


def test_verdicts_that_there_are_decide() -> None:
    assert all_of([True, None]) is True
    assert all_of([True, None, False]) is False
    assert all_of([None]) is None


def test_a_peer_without_an_environment_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ContestantError, match=r"xoscar needs .* no .*xoscar/bin/python: benches/README.md"):
        peer("xoscar", tmp_path)


def test_flags_choose_peers_rounds_and_cases() -> None:
    options = parse("", rounds=5, arguments=["--peer", "ray", "--peer", "xoscar", "--peer", "ray", "--only", "group"])
    assert (options.peers, options.rounds) == (("ray", "xoscar"), 5)
    assert options.wants("group_call")
    assert not options.wants("one_call")
    assert parse("", rounds=5, arguments=["--quick"]).rounds == 1
    assert parse("", rounds=5, arguments=[]).wants("anything")
