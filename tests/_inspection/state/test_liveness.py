"""Liveness as a fixed point: hopeless waits are a closed set, and more life never makes a run stuck; random runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from hypothesis import given, settings, strategies as st

from rlinf_async._inspection.state.collective_needs import Needs
from rlinf_async._inspection.state.entanglement import core_of
from rlinf_async._inspection.state.liveness import Liveness
from rlinf_async._inspection.state.run_report import (
    Activity,
    ActivityState,
    ProcessReport,
    RunReport,
    TargetKind,
)
from rlinf_async._inspection.state.verdict import VerdictKind, judge, render
from rlinf_async._inspection.state.wait_graph import WaitGraph, WaitNode, is_stopped
from tests._support.made_reports import aged
from tests._support.random_reports import DRIVER, WORKERS, RandomReport

STUCK = (VerdictKind.DEADLOCK, VerdictKind.NOBODY_LEFT, VerdictKind.STOPPED)
EVERYBODY = (DRIVER, *WORKERS)

several = settings(max_examples=60, deadline=None, derandomize=True, database=None)
runs = st.integers(0, 1 << 32).map(lambda seed: RandomReport(seed).make())


def changed(report: RunReport, endpoint: int, change: Callable[[ProcessReport], ProcessReport]) -> RunReport:
    found = [change(each) if each.endpoint == endpoint else each for each in report.processes]
    return dataclasses.replace(report, processes=found)


def is_stuck(report: RunReport) -> bool:
    return judge(aged(report), report).is_stuck


@several
@given(runs, runs)
def test_any_two_reports_have_a_verdict_in_words(one: RunReport, other: RunReport) -> None:
    for verdict in judge(one), judge(aged(one), one), judge(one, other):
        assert verdict.is_stuck is (verdict.kind in STUCK)
        assert verdict.headline
        assert render(verdict).startswith(f"{verdict.kind}: ")
        assert json.loads(json.dumps(verdict.to_data()))["kind"] == verdict.kind
        assert set(verdict.participants) <= {*EVERYBODY}
    assert not judge(one).is_stuck


@several
@given(runs, st.booleans())
def test_nothing_that_lives_reaches_what_is_hopeless(report: RunReport, stopped_go_on: bool) -> None:
    needs = Needs(WaitGraph(report))
    liveness = Liveness(needs, stopped_go_on=stopped_go_on)

    def is_closed(node: WaitNode) -> bool:
        unmet = [
            all(not may_act(other) for other in need.nodes)
            and not need.coming
            and not (need.anyone and (liveness.alive or report.missing))
            for need in needs.of(node)
        ]
        assert unmet
        return any(unmet) if node.wait is None or node.wait.every else all(unmet)

    def may_act(node: WaitNode) -> bool:
        if is_stopped(node.process) and not stopped_go_on:
            return False
        state = None if node.activity is None else node.activity.state
        return node not in liveness.hopeless and state is not ActivityState.IDLE

    for node in liveness.hopeless:
        assert node.waits
        assert node.process.answered
        assert is_closed(node)
    for node in liveness.alive:
        assert node.activity is None or node.activity.state is not ActivityState.IDLE
    core = core_of(liveness)
    assert (core is None) is not liveness.hopeless
    if core is not None:
        assert set(core.nodes) <= set(liveness.hopeless)
        assert core.needs


@several
@given(runs, st.sampled_from(EVERYBODY), st.sampled_from((ActivityState.RUNNING, ActivityState.SLEEPING)))
def test_one_more_activity_that_lives_makes_nothing_stuck(report: RunReport, where: int, state: ActivityState) -> None:
    if not is_stuck(report):
        more = Activity("task more", state)
        assert not is_stuck(
            changed(report, where, lambda each: dataclasses.replace(each, activities=[*each.activities, more]))
        )


@several
@given(runs, st.sampled_from(EVERYBODY))
def test_what_sleeps_instead_of_waiting_makes_nothing_stuck(report: RunReport, where: int) -> None:
    def awake(process: ProcessReport) -> ProcessReport:
        return dataclasses.replace(
            process,
            activities=[
                dataclasses.replace(each, state=ActivityState.SLEEPING, wait=None, awaits=[])
                for each in process.activities
            ],
        )

    if not is_stuck(report):
        assert not is_stuck(changed(report, where, awake))


@several
@given(runs, st.sampled_from(EVERYBODY))
def test_one_thing_less_to_wait_for_makes_nothing_stuck(report: RunReport, where: int) -> None:
    kinds = (TargetKind.CALL, TargetKind.QUEUE, TargetKind.NAME)

    def lighter(activity: Activity) -> Activity:
        wait = activity.wait
        if wait is None or not wait.every or len(wait.targets) < 2 or wait.targets[-1].kind not in kinds:
            return activity
        return dataclasses.replace(activity, wait=dataclasses.replace(wait, targets=wait.targets[:-1]))

    if not is_stuck(report):
        assert not is_stuck(
            changed(report, where, lambda each: dataclasses.replace(each, activities=[*map(lighter, each.activities)]))
        )
