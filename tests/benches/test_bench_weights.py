"""The bench of weights: requests to contestants, and rows from their answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benches import bench_weights
from benches.bench_weights import ALONE, CONTROL, DIRECT, LARGE, ONE, STREAMED, Session, Sync
from benches.contestant import HERE, ContestantError
from benches.exchange import MEBI
from benches.measure import LIMIT, OURS
from benches.options import parse

CONTESTANTS = str(HERE / "contestants")


class Standing:
    """Answers with what it is given; an error is raised."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def ask(self, work: str, **arguments: Any) -> Any:
        self.asked.append(f"{work} {arguments.get('shape', '')} {arguments.get('apply', '')}".strip())
        answer = self._answers[work]
        if isinstance(answer, Exception):
            raise answer
        return answer(**arguments) if callable(answer) else answer


def ours() -> Standing:
    def sync(shape: str, **_: Any) -> dict[str, list[float]]:
        staged = {"many": 0.2}.get(shape, 0.1)
        return {"staged": [staged], "total": [staged + 0.05], "pause": [0.01]}

    return Standing(sync=sync, control=[0.001])


def limits() -> Standing:
    copies = {"alone": [0.1], "together": [0.3], "moved_alone": [0.05], "moved_together": [0.2]}
    return Standing(copies=copies, echo=[0.0001])


def session(**peers: Any) -> Session:
    standing: dict[str, Any] = {OURS: ours(), **peers, LIMIT: limits()}
    return Session(standing, quick=True)


def test_a_copy_is_bounded_by_one_copy_and_one_of_all_receivers_at_once() -> None:
    (copy,) = [sync for sync in bench_weights.large(True, 2, "copy") if sync.shape == "llm"]
    rounds: Any = session().round([copy], backwards=False)
    assert rounds["llm_64MiB_2_copy_staged"] == {OURS: [0.1], LIMIT: [0.1], STREAMED: [0.05]}
    assert rounds["llm_64MiB_2_copy_total"] == {
        OURS: [pytest.approx(0.15)], LIMIT: [pytest.approx(0.4)], STREAMED: [pytest.approx(0.25)]
    }  # fmt: skip
    assert "llm_64MiB_2_copy_rest" not in rounds


def test_a_map_is_bounded_by_one_copy_and_what_comes_after_it_by_its_tensors() -> None:
    family = bench_weights.large(True, 2, "map")
    rounds: Any = session().round(family, backwards=True)
    assert rounds["llm_64MiB_2_map_total"] == {OURS: [pytest.approx(0.15)], LIMIT: [0.1], STREAMED: [0.05]}
    assert rounds["many_64MiB_2_map_total"] == {
        OURS: [0.25], LIMIT: [0.1], STREAMED: [0.05], ONE: [pytest.approx(0.15)]
    }  # fmt: skip
    assert rounds["one_64MiB_2_map_rest"] == {OURS: [pytest.approx(0.05)]}
    cases = {case.name: case for sync in family for case in sync.cases().values()}
    rows = {name: cases[name].row([measured]) for name, measured in rounds.items()}
    assert rows["many_64MiB_2_map_rest"]["met"] is True, "0.05 s are within 2 ms and 5 us of each of ten thousand"
    assert rows["llm_64MiB_2_map_rest"]["met"] is False
    assert rows["many_64MiB_2_map_total"]["met"] is False, "more than 1.5 times as long as one tensor"


def test_what_comes_after_staging_is_set_beside_what_one_receiver_takes_if_that_was_measured() -> None:
    measuring, alone = session(), session()
    first: Any = [measuring.round(bench_weights.large(True, 1, "map"), backwards=False) for _ in range(2)]
    assert ALONE not in first[0]["llm_64MiB_1_map_rest"]
    family = bench_weights.large(True, 4, "map")
    rounds: Any = measuring.round(family, backwards=False)
    assert rounds["llm_64MiB_4_map_rest"][ALONE] == [pytest.approx(0.05)] * 2
    (case,) = [case for sync in family if sync.shape == "llm" for name, case in sync.cases().items() if name == "rest"]
    row = case.row([rounds[case.name]])
    assert row["beside"][ALONE]["ratio"] == pytest.approx(1.0)
    assert row["peers"] == {}
    assert ALONE not in alone.round(family, backwards=False)["llm_64MiB_4_map_rest"]


def test_a_small_policy_is_set_beside_the_messages_that_it_takes() -> None:
    rounds: Any = session().round(bench_weights.small(4, "map"), backwards=False)
    assert rounds["mlp_100KiB_4_map_total"] == {OURS: [pytest.approx(0.15)], LIMIT: [0.0001], CONTROL: [0.001]}


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_small_policy_is_to_be_sooner_there_than_with_every_peer(apply: str) -> None:
    family = bench_weights.small(2, apply)
    cases = {case.name: case for sync in family for case in sync.cases().values()}
    name = f"mlp_100KiB_2_{apply}_total"

    def met(**totals: float) -> Any:
        peers = {peer: Standing(sync={"staged": [0.0], "total": [total]}) for peer, total in totals.items()}
        ours = Standing(sync={"staged": [0.1], "total": [0.15], "pause": [0.01]}, control=[0.1])
        standing: Any = {OURS: ours, **peers, LIMIT: limits()}
        return cases[name].row([Session(standing, quick=True).round(family, backwards=False)[name]])["met"]

    assert met(torchrl=0.2, ray=0.3) is True
    assert met(torchrl=0.2, ray=0.1) is False
    assert met() is True, "control counts, which is no peer"


def test_what_machines_pass_on_is_set_beside_what_the_trainer_sends_to_each() -> None:
    ours = Standing(sync={"staged": [0.1], "total": [0.4], "pause": [0.0]}, direct=[1.2])
    standing: Any = {OURS: ours, LIMIT: Standing(gloo_broadcast=[0.35])}
    family = bench_weights.narrow(True)
    (row,) = Session(standing, quick=True).round(family, backwards=False).items()
    name, measured = row
    assert measured == {OURS: [0.4], LIMIT: [0.35], DIRECT: [1.2]}
    (case,) = family[0].cases().values()
    assert case.name == name
    assert case.row([measured])["met"] is True
    assert case.row([{**measured, OURS: [0.7]}])["met"] is False


def test_a_peer_is_not_asked_for_what_it_has_not_nor_again_for_what_it_failed_at() -> None:
    rlinf = Standing(sync={"staged": [1.0], "total": [2.0]})
    ray = Standing(sync=ContestantError("ray failed at sync"))
    measuring = session(rlinf=rlinf, ray=ray)
    for apply in ("map", "copy"):
        for backwards in (False, True):
            rounds = measuring.round([Sync("one", MEBI, 1, apply)], backwards=backwards)
    assert rlinf.asked == ["sync one copy"] * 2
    assert ray.asked == ["sync one map", "sync one copy"]
    assert rounds["one_1MiB_1_copy_total"]["rlinf"] == [2.0]
    assert "ray" not in rounds["one_1MiB_1_copy_total"]


def test_who_wants_ten_thousand_tensors_has_one_measured_too() -> None:
    options = parse("", rounds=1, arguments=["--quick", "--only", "many_64MiB_4_map"])
    (family,) = bench_weights.wanted(options, bench_weights.families(options.quick))
    assert [sync.name for sync in family] == ["many_64MiB_4_map", "one_64MiB_4_map"]


@pytest.mark.parametrize("shape", [*LARGE, "mlp"])
def test_every_shape_has_its_tensors_and_all_of_its_bytes(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(CONTESTANTS)
    weighing: Any = __import__("weighing")
    size = bench_weights.POLICY if shape == "mlp" else 1024 * MEBI
    leaves = weighing.leaves(shape, size)
    assert math.fsum(leaves.values()) * 4 == size
    assert len(leaves) == {**LARGE, "mlp": 5}[shape]
    assert min(leaves.values()) > 0


def test_a_receiver_sees_that_it_has_two_versions_and_what_is_different_in_a_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(CONTESTANTS)
    weighing: Any = __import__("weighing")
    model = weighing.model("llm", MEBI)
    weighing.fill(model, 7)
    weighing.check(model, 7)
    model.layer_3_up[5] = 6
    with pytest.raises(ValueError, match="layer_3_up of version 7 holds values from 6 to 7"):
        weighing.check(model, 7)
    sent = weighing.fill_with_pattern(model)
    assert sent == weighing.sums(model)
    model.layer_3_up[5] += 1
    assert sent != weighing.sums(model)
