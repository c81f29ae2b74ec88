"""Threads and tasks of processes as text."""

from __future__ import annotations

from typing import Any

from rlinf_async._inspection.state.run_report import (
    Activity,
    ActivityState,
    Frame,
    OpenCall,
    ProcessReport,
    Target,
    TargetKind,
    Wait,
)
from rlinf_launcher.control.stack_text import alike, stack_lines


def rank(number: int, activities: list[Activity], **facts: Any) -> ProcessReport:
    name = f"rollout:{number}"
    return ProcessReport(
        number + 2, "worker", name, "rollout", number, 0, "node0", 100 + number, activities=activities, **facts
    )


def waiting(age: float) -> Activity:
    wait = Wait("recv", "recv from actor:0", age, [Target(TargetKind.MESSAGE, 9)], left=3.0)
    stack = [Frame("/x/train.py", 12, "rollout", users=True)]
    return Activity("task Task-7", ActivityState.WAITING, method="rollout", wait=wait, stack=stack)


def test_a_wait_of_unknown_age_is_shown_without_one() -> None:
    assert not any("0.0 s" in line for line in stack_lines([rank(0, [waiting(0.0)])]))


def test_a_process_is_shown_with_calls_and_tasks() -> None:
    process = rank(0, [waiting(200)], calls=[OpenCall(1, 1, "rollout", 200.4)])
    assert list(stack_lines([process])) == [
        "rollout:0  (pid 100 on node0)",
        "  has been asked for rollout() for 3 min 20 s",
        "  task Task-7: waits for 3 min 20 s: recv from actor:0, 3.0 s to its deadline, serves rollout()",
        "    > /x/train.py:12 in rollout()",
    ]


def test_a_task_is_shown_once_below_its_awaiter() -> None:
    tasks = [
        Activity("task child", ActivityState.SLEEPING, age=1.0, line="/x/a.py:3 in child()"),
        Activity("task parent", ActivityState.WAITING, awaits=["task child", "task gone"]),
        Activity("task one", ActivityState.WAITING, awaits=["task two"]),
        Activity("task two", ActivityState.WAITING, awaits=["task one"]),
    ]
    assert list(stack_lines([rank(0, tasks)]))[1:] == [
        "  task parent: awaits task child, task gone",
        "      task child: sleeping for 1.0 s",
        "          /x/a.py:3 in child()",
        "  task one: awaits task two",
        "      task two: awaits task one",
    ]


def test_a_silent_process_is_described_as_such() -> None:
    dumped = rank(0, [Activity("thread MainThread", ActivityState.RUNNING)], answered=False, trouble="does not answer")
    assert list(stack_lines([dumped])) == [
        "rollout:0  (pid 100 on node0)  does not answer",
        "  as its stacks show it from outside; of its tasks nothing is known",
        "  thread MainThread: running",
    ]
    assert list(stack_lines([rank(1, [])]))[1:] == ["  nothing of the user's runs or waits"]


def test_ranks_that_differ_in_ages_only_are_told_once() -> None:
    ranks = [rank(0, [waiting(2.0)]), rank(1, [waiting(2.5)]), rank(2, []), rank(3, [waiting(2.0)])]
    first, second = alike(ranks)
    assert next(stack_lines(first)) == "rollout:0,1,3  (3 alike; of the first, pid 100 on node0)"
    assert [process.name for process in second] == ["rollout:2"]


def test_a_chain_of_two_thousand_tasks_is_shown() -> None:
    tasks = [Activity(f"task {n}", ActivityState.WAITING, awaits=[f"task {n + 1}"]) for n in range(2000)]
    lines = list(stack_lines([rank(0, tasks)]))
    assert len(lines) == 2001
    assert lines[-1].strip() == "task 1999: awaits task 2000"
    assert max(map(len, lines)) < 200
