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


def test_a_wait_whose_age_is_not_known_is_told_without_one() -> None:
    assert not any("0.0 s" in line for line in stack_lines([rank(0, [waiting(0.0)])]))


def test_a_process_is_told_with_its_calls_and_what_its_tasks_wait_for() -> None:
    process = rank(0, [waiting(200)], calls=[OpenCall(1, 1, "rollout", 200.4)])
    assert list(stack_lines([process])) == [
        "rollout:0  (pid 100 on node0)",
        "  has been asked for rollout() for 3 min 20 s",
        "  task Task-7: waits for 3 min 20 s: recv from actor:0, 3.0 s to its deadline, serves rollout()",
        "    > /x/train.py:12 in rollout()",
    ]


def test_a_task_stands_below_the_one_that_awaits_it_and_once_only() -> None:
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


def test_what_is_known_of_a_process_that_is_silent_is_said_as_such() -> None:
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
