"""Runs that go on are never called stuck: each shows a moment that looks like a standstill at first sight."""

from __future__ import annotations

import dataclasses

import pytest

from rlinf_async._inspection.state.run_report import (
    LOOP_BLOCKED,
    Activity,
    ActivityState,
    ChildProcess,
    Frame,
    OpenCall,
    QueueReport,
    RunReport,
    Target,
    TargetKind,
    Wait,
)
from rlinf_async._inspection.state.verdict import VerdictKind, judge
from tests._support.made_reports import DRIVER, MadeRun, aged, collective, get, local, weights

WAITING, RUNNING, SLEEPING, IDLE = (
    ActivityState.WAITING,
    ActivityState.RUNNING,
    ActivityState.SLEEPING,
    ActivityState.IDLE,
)


def consumer() -> MadeRun:
    """A learner in a get; the driver waits for it, and both would wait for ever."""
    run = MadeRun(learner=1, env=2)
    serves = run.driver_calls("learn", "learner:0")
    run.does("learner:0", WAITING, get(), serves=serves)
    assert run.verdict().is_stuck
    return run


def circle() -> MadeRun:
    """Two ranks that wait for each other in a receive; nothing else does anything."""
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    for rank in range(2):
        run.does(f"stage:{rank}", WAITING, run.message("recv", f"stage:{1 - rank}"), serves=serves)
    assert run.verdict().is_stuck
    return run


def kind_of(run: MadeRun) -> VerdictKind:
    verdict = run.verdict()
    assert not verdict.is_stuck, str(verdict)
    return verdict.kind


# -- something lives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [SLEEPING, RUNNING])
@pytest.mark.parametrize("where", [DRIVER, "env:1", "learner:0"])
def test_whatever_runs_or_sleeps_may_put_what_a_get_waits_for(where: str, state: ActivityState) -> None:
    run = consumer()
    run.does(where, state, task="task other")
    assert kind_of(run) is VerdictKind.BUSY


def test_a_process_that_holds_the_interpreter_and_does_not_answer_is_busy_at_its_line() -> None:
    run = consumer()
    run.change("env:0", answered=False, trouble="does not answer")
    run.does("env:0", RUNNING, line="/x/sim.py:88 in step()")
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.BUSY
    assert "does not answer and runs, at /x/sim.py:88 in step()" in verdict.headline


def test_a_driver_that_does_not_answer_is_busy_at_its_line_even_where_its_stacks_wait() -> None:
    run = MadeRun(actor=4)
    run.change(DRIVER, answered=False, trouble="does not answer")
    loop = [Frame("/usr/lib/python3.11/asyncio/base_events.py", 9, "_run_once")]
    run.does(DRIVER, WAITING, local("a lock of this process"), line="/x/train.py:9 in feed()", task="thread feeder")
    run.does(DRIVER, WAITING, local("a thread of this process"), line="/x/train.py:12 in main()", stack=loop)
    verdict = run.verdict()
    assert (verdict.kind, verdict.participants) == (VerdictKind.BUSY, [1])
    assert verdict.headline.endswith("at /x/train.py:12 in main(); its event loop is blocked there")


def test_a_blocked_loop_whose_call_goes_on_is_busy_at_its_line() -> None:
    run = MadeRun(actor=4)
    run.change(DRIVER, trouble=LOOP_BLOCKED)
    run.does(DRIVER, ActivityState.SLEEPING, line="/x/train.py:12 in main()", task="task main", blocks=True)
    run.does(DRIVER, WAITING, run.call(DRIVER, "step", "actor:0")[0], task="task ask", awaits=["task main"])
    verdict = run.verdict()
    assert (verdict.kind, verdict.participants) == (VerdictKind.BUSY, [1])
    assert verdict.headline.endswith("does not run its event loop and sleeps, at /x/train.py:12 in main()")
    assert "asyncio.to_thread" in verdict.advice[0]


@pytest.mark.parametrize(
    "trouble", ["does not answer", "is being started", "has 9000 tasks and threads, too many to tell"]
)
def test_a_process_of_which_nothing_is_known_may_do_anything(trouble: str) -> None:
    run = consumer()
    run.change("env:0", answered=False, trouble=trouble)
    assert kind_of(run) is VerdictKind.BUSY


def test_a_node_that_has_not_answered_may_have_the_producers() -> None:
    run = consumer()
    run.missing = {"n1": "no answer"}
    kind_of(run)


def test_a_run_without_a_driver_begins_or_ends() -> None:
    run = consumer()
    del run.processes[DRIVER]
    kind_of(run)


def test_a_driver_in_its_users_hands_may_go_on() -> None:
    """A notebook between two cells: nothing of the user's runs there."""
    run = MadeRun(env=2)
    run.does("env:0", WAITING, get(), task="task listen")
    kind_of(run)
    run.does(DRIVER, IDLE, task="thread MainThread")
    kind_of(run)


def test_a_wait_with_a_deadline_ends_by_itself() -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    run.does("stage:0", WAITING, run.message("recv", "stage:1"), serves=serves)
    run.does("stage:1", WAITING, run.message("recv", "stage:0", left=30.0), serves=serves)
    kind_of(run)
    assert any("for 30 s more at most" in line or "for 29 s more at most" in line for line in run.verdict().lines)


def test_a_deadline_in_an_hour_is_no_answer() -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    run.does("stage:0", WAITING, run.message("recv", "stage:1"), serves=serves)
    run.does("stage:1", WAITING, run.message("recv", "stage:0", left=3600.0), serves=serves)
    verdict = run.verdict()
    assert verdict.is_stuck
    assert any("for 3600 s more at most" in line or "for 3599 s more at most" in line for line in verdict.lines)


def test_an_event_may_be_set_by_a_call_that_a_driver_makes_later() -> None:
    run = MadeRun(server=1)
    serves = run.driver_calls("serve", "server:0")
    run.does("server:0", WAITING, local("asyncio.Semaphore"), serves=serves, task="task serve", stack=acquire())
    assert run.verdict().is_stuck
    run.does(DRIVER, SLEEPING, task="task main")
    assert kind_of(run) is VerdictKind.BUSY


def acquire(function: str = "Semaphore.acquire") -> list[Frame]:
    return [Frame("/x/s.py", 3, "Server.serve", users=True), Frame("/usr/lib/python3.11/asyncio/locks.py", 9, function)]


@pytest.mark.parametrize("function", ["Event.wait", "Condition.wait", "Queue.get"])
def test_what_a_coroutine_waits_for_may_come_from_a_socket(function: str) -> None:
    """A server of requests: what ends its wait is a callback of the loop, of which no report tells."""
    run = MadeRun(server=1)
    serves = run.driver_calls("serve", "server:0")
    wait = local(f"asyncio.{function.partition('.')[0]}")
    run.does("server:0", WAITING, wait, serves=serves, task="task serve", stack=acquire(function))
    verdict = run.verdict()
    assert not verdict.is_stuck
    assert verdict.headline.endswith("it may come from outside")


def test_a_driver_that_waits_for_a_signal_is_no_standstill() -> None:
    run = MadeRun(server=1)
    run.does(DRIVER, WAITING, local("threading.Event.wait()"))
    kind_of(run)


# -- under way ----------------------------------------------------------------------------------------------------


def test_a_call_that_has_not_arrived_is_under_way() -> None:
    run = MadeRun(actor=1)
    run.driver_calls("step", "actor:0")
    run.change("actor:0", calls=[])
    kind_of(run)


def test_an_answer_whose_caller_does_not_have_it_yet_is_under_way() -> None:
    run = consumer()
    wait, _ = run.call("learner:0", "reset", "env:0")
    run.change("learner:0", activities=[])
    run.does("learner:0", WAITING, wait, serves=(1, 1, "learn"))
    run.change("env:0", calls=[])
    kind_of(run)


def test_a_call_that_has_arrived_and_is_served_by_nothing_yet_begins() -> None:
    run = MadeRun(actor=1)
    run.driver_calls("step", "actor:0")
    kind_of(run)


def test_a_worker_that_is_about_to_begin_a_call_may_do_anything() -> None:
    run = consumer()
    run.call(DRIVER, "collect", "env:1")
    kind_of(run)


def test_a_call_that_has_just_arrived_behind_coroutines_begins() -> None:
    run = MadeRun(actor=1, env=1)
    serves = run.driver_calls("step", "actor:0")
    wait, _ = run.call("actor:0", "reset", "env:0")
    run.does("actor:0", WAITING, wait, serves=serves, task="task step")
    run.does("env:0", WAITING, get(), serves=(1, 77, "collect"), task="task collect")
    reset = run.processes["env:0"].calls[0]
    run.change("env:0", calls=[dataclasses.replace(reset, age=0.4)])
    kind_of(run)


def test_a_call_to_a_worker_that_has_ended_fails_soon() -> None:
    run = MadeRun(actor=1)
    run.driver_calls("step", "actor:0")
    run.change("actor:0", trouble="ended: exit code 1", answered=False)
    kind_of(run)


@pytest.mark.parametrize("both", [("send", "recv"), ("calls", "recv")])
def test_a_message_with_both_sides_there_is_under_way(both: tuple[str, str]) -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    run.does("stage:0", WAITING, run.message(both[0], "stage:1"), serves=serves)
    run.does("stage:1", WAITING, run.message(both[1], "stage:0"), serves=serves)
    kind_of(run)


def test_two_exchanges_with_sends_and_receives_on_both_sides_are_under_way() -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    for rank in range(2):
        name, other = f"stage:{rank}", f"stage:{1 - rank}"
        run.does(name, WAITING, run.message("send", other), task="task send", serves=serves)
        run.does(name, WAITING, run.message("recv", other), task="task recv", serves=serves)
        run.does(name, WAITING, awaits=["task send", "task recv"], task="task both", serves=serves)
    kind_of(run)


def test_a_collective_that_all_have_come_to_is_under_way() -> None:
    run = MadeRun(actor=4)
    serves = run.driver_calls("train", *(f"actor:{rank}" for rank in range(4)))
    for rank in range(4):
        wait = collective("all_reduce", [other for other in range(4) if other != rank])
        run.does(f"actor:{rank}", WAITING, wait, serves=serves)
    verdict = run.verdict()
    assert (verdict.kind, verdict.headline.rpartition("; ")[2]) == (
        VerdictKind.BUSY,
        "all have arrived, and data is under way",
    )


def test_a_collective_of_some_ranks_needs_no_others() -> None:
    run = MadeRun(actor=4)
    serves = run.driver_calls("train", "actor:0", "actor:1")
    for rank in range(2):
        run.does(f"actor:{rank}", WAITING, collective("barrier", [1 - rank], "3"), serves=serves)
    kind_of(run)


def weights_to_all_rollouts(group: str) -> MadeRun:
    """The trainer's rank 0 brings weights to two rollouts, and its other ranks wait for it in a barrier."""
    run = MadeRun(actor=3, rollout=3)
    serves = run.driver_calls("sync", "actor:0", "actor:1", "actor:2")
    run.does("actor:0", WAITING, collective("broadcast", [1, 2], group), serves=serves)
    for rank in 1, 2:
        run.does(f"actor:{rank}", WAITING, collective("barrier", [0, 3 - rank]), serves=serves)
    return run


def test_a_process_group_over_two_worker_groups_is_not_judged_by_the_ranks_of_one() -> None:
    run = weights_to_all_rollouts("0")
    for rank in range(2):
        run.does(f"rollout:{rank}", WAITING, collective("broadcast", [0, 2 - rank]), serves=(1, 50, "update"))
    kind_of(run)


def test_a_process_group_with_a_name_of_the_users_may_have_members_that_have_not_come() -> None:
    assert weights_to_all_rollouts("0").verdict().is_stuck
    run = weights_to_all_rollouts("weights")
    run.does("rollout:0", RUNNING)
    kind_of(run)


def test_ranks_of_a_world_that_is_larger_than_the_group_are_not_known() -> None:
    run = MadeRun(actor=1, rollout=1)
    serves = run.driver_calls("sync", "actor:0")
    run.does("actor:0", WAITING, collective("broadcast", [1, 2], "0"), serves=serves)
    kind_of(run)


def test_a_receive_from_whichever_rank_is_met_by_one_that_sends() -> None:
    run = MadeRun(actor=3)
    serves = run.driver_calls("train", "actor:0", "actor:1", "actor:2")
    run.does("actor:0", WAITING, collective("recv", [1, 2]), serves=serves)
    for rank in 1, 2:
        run.does(f"actor:{rank}", WAITING, collective("barrier", [0, 3 - rank]), serves=serves)
    assert run.verdict().is_stuck
    run.change("actor:1", activities=[])
    run.does("actor:1", WAITING, collective("send", [0]), serves=serves)
    kind_of(run)


def test_a_put_into_a_channel_with_room_is_under_way() -> None:
    run = MadeRun(env=1)
    run.does(DRIVER, WAITING, get(7, "prompts", "put"), task="task main")
    run.queues = [QueueReport(7, "prompts", 0, 4, 60, 8, False, [1], [], [1])]
    kind_of(run)


def test_a_large_item_may_be_under_way_to_a_get() -> None:
    run = consumer()
    run.queues = [QueueReport(7, "episodes", 0, 1, 1 << 30, 0, False, [3], [2], [2, 3])]
    kind_of(run)


def test_a_version_that_one_side_sends_and_the_other_waits_for_is_under_way() -> None:
    run = MadeRun(rollout=2, trainer=1)
    serves = run.driver_calls("rollout", "rollout:0", "rollout:1")
    for rank in range(2):
        run.does(f"rollout:{rank}", WAITING, weights("version 4 of 'policy'"), serves=serves)
    run.does("trainer:0", WAITING, weights("version 4 at its receivers"), serves=(1, 70, "train"))
    kind_of(run)


def test_what_the_framework_works_on_is_under_way() -> None:
    run = MadeRun(actor=1)
    wait = Wait("request", "the start of 4 workers", 20.0, [Target(TargetKind.DAEMON, 0, 0, "Spawn")])
    run.does(DRIVER, WAITING, wait, task="task main")
    kind_of(run)


def test_what_is_waited_for_in_words_only_is_not_judged() -> None:
    run = MadeRun(actor=1)
    run.does(DRIVER, WAITING, Wait("operation", "an operation", 20.0, []), task="task main")
    verdict = run.verdict()
    assert (verdict.is_stuck, verdict.headline.rpartition("; ")[2]) == (False, "it is not known who ends that")


def test_a_task_that_has_ended_while_another_still_awaits_it_frees_that() -> None:
    run = MadeRun(actor=1)
    run.does(DRIVER, WAITING, awaits=["task gone"], task="task main")
    kind_of(run)


def test_the_first_of_several_tasks_is_enough_for_who_waits_for_any() -> None:
    run = circle()
    targets = [Target(TargetKind.LOCAL, name="task exchange"), Target(TargetKind.LOCAL, name="task other")]
    wait = Wait("tasks", "the first of 2 tasks", 5.0, targets, every=False)
    run.does(DRIVER, WAITING, wait, task="task main")
    run.does(DRIVER, WAITING, Wait("request", "names", 5.0, [Target(TargetKind.DAEMON)]), task="task other")
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.DEADLOCK  # the ranks stand still all the same
    assert not any("the first of 2 tasks" in line for line in verdict.lines)


@pytest.mark.parametrize("working", [1, 2])
def test_data_may_be_under_way_to_a_process_that_works(working: int) -> None:
    """A broadcast whose root has gone on to the next collective, while the others still receive."""
    run = MadeRun(actor=2)
    serves = run.driver_calls("train", "actor:0", "actor:1")
    run.does("actor:0", WAITING, collective("all_gather", [1]), serves=serves)
    run.does("actor:1", WAITING, collective("broadcast", [0]), serves=serves)
    assert run.verdict().is_stuck
    assert run.verdict([1]).is_stuck
    assert not run.verdict([run.endpoint(f"actor:{working - 1}")]).is_stuck


# -- moments of one run that do not fit together --------------------------------------------------------------------


def test_what_has_waited_for_less_than_two_seconds_may_still_be_freed() -> None:
    run = MadeRun(learner=1)
    serves = run.driver_calls("learn", "learner:0")
    run.does("learner:0", WAITING, get(age=1.0), serves=serves)
    kind_of(run)


def test_a_get_that_follows_another_one_has_gone_on() -> None:
    run = consumer()
    before = run.report()
    run.change("learner:0", activities=[])
    run.does("learner:0", WAITING, get(age=2.1), serves=(1, 1, "learn"))
    assert not judge(run.report(), before).is_stuck


def test_a_driver_that_has_just_been_stopped_has_held_up_nothing() -> None:
    run = MadeRun(rollout=2)
    before = run.report()
    run.change(DRIVER, answered=False, trouble="stopped (T)")
    assert not judge(run.report(), before).is_stuck


@pytest.mark.parametrize("moved", ["activity", "call", "item", "process"])
def test_what_comes_and_goes_between_two_reports_shows_that_something_lives(moved: str) -> None:
    run = consumer()
    run.queues = [QueueReport(7, "episodes", 0, 2, 9, 0, False, [3], [2], [2, 3])]
    before = run.report()
    after = aged(before)
    assert judge(after, before).is_stuck
    env = next(each for each in after.processes if each.name == "env:1")
    others = [each for each in after.processes if each.name != "env:1"]
    if moved == "activity":
        with_task = dataclasses.replace(env, activities=[Activity("task t", WAITING, wait=get(), awaits=[])])
        after = dataclasses.replace(after, processes=[*others, with_task])
    elif moved == "call":
        with_call = dataclasses.replace(env, calls=[OpenCall(2, 40, "reset", 5.0)])
        before = dataclasses.replace(before, processes=[*others, with_call])
    elif moved == "item":
        after = dataclasses.replace(after, queues=[dataclasses.replace(after.queues[0], items=1)])
    else:
        after = dataclasses.replace(after, processes=others)
    assert not judge(after, before).is_stuck


# -- words about runs that go on ------------------------------------------------------------------------------------


def test_a_rank_whose_call_the_others_have_answered_is_a_straggler() -> None:
    run = MadeRun(reward=4)
    serves = run.driver_calls("score", "reward:1", asked=4)
    run.does("reward:1", RUNNING, serves=serves, line="/x/model.py:88 in Reward.score()")
    verdict = run.verdict()
    assert (verdict.kind, verdict.participants) == (VerdictKind.STRAGGLER, [run.endpoint("reward:1")])
    assert verdict.headline == (
        "reward:1 runs score() for 11 s, at /x/model.py:88 in Reward.score(); 3 other ranks have finished"
    )
    assert any(line.startswith("the driver (n0, pid 100, task score) waits for 11 s") for line in verdict.lines)


def test_a_rank_that_the_others_wait_for_in_a_collective_is_a_straggler() -> None:
    run = MadeRun(actor=8)
    ranks = range(8)
    serves = run.driver_calls("step", *(f"actor:{rank}" for rank in ranks))
    for rank in ranks:
        wait = collective("all_reduce", [other for other in ranks if other != rank])
        run.does(f"actor:{rank}", RUNNING if rank == 5 else WAITING, None if rank == 5 else wait, serves=serves)
    verdict = run.verdict()
    assert (verdict.kind, verdict.participants) == (VerdictKind.STRAGGLER, [run.endpoint("actor:5")])
    assert "7 other ranks have arrived in all_reduce" in verdict.headline


def test_many_ranks_that_run_are_busy_and_no_stragglers() -> None:
    run = MadeRun(actor=4)
    serves = run.driver_calls("step", *(f"actor:{rank}" for rank in range(3)), asked=4)
    for rank in range(3):
        run.does(f"actor:{rank}", RUNNING, serves=serves)
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.BUSY
    assert verdict.headline.startswith("actor:0-2 run step() for 11 s")


def test_the_only_rank_that_was_asked_is_no_straggler() -> None:
    run = MadeRun(actor=4)
    serves = run.driver_calls("evaluate", "actor:2")
    run.does("actor:2", RUNNING, serves=serves)
    assert run.verdict().kind is VerdictKind.BUSY


def test_a_rank_that_is_late_by_a_moment_is_no_straggler() -> None:
    run = MadeRun(actor=4)
    wait, serves = run.call(DRIVER, "step", "actor:2", age=0.5, asked=4)
    run.does(DRIVER, WAITING, wait)
    run.does("actor:2", RUNNING, serves=serves)
    assert run.verdict().kind is VerdictKind.BUSY


def test_a_run_in_which_nothing_waits_is_idle() -> None:
    run = MadeRun(actor=4)
    run.does(DRIVER, IDLE)
    verdict = run.verdict()
    assert (verdict.kind, verdict.lines, verdict.participants) == (VerdictKind.IDLE, [], [])


def test_a_rank_that_waits_for_the_outside_is_busy_and_says_for_what() -> None:
    run = MadeRun(reward=1)
    serves = run.driver_calls("score", "reward:0")
    wait = Wait("socket", "data from socket 10.0.0.7:80", 0.0, [])
    run.does("reward:0", RUNNING, wait, serves=serves, line="/x/r.py:5 in ask()")
    verdict = run.verdict()
    assert (verdict.kind, verdict.headline) == (
        VerdictKind.BUSY,
        "reward:0 waits for 11 s: data from socket 10.0.0.7:80, at /x/r.py:5 in ask(), in a call of score()",
    )


def test_a_run_without_a_driver_is_idle_and_says_so() -> None:
    run = MadeRun(actor=4)
    del run.processes[DRIVER]
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.IDLE
    assert "the driver has ended, or has not come yet" in verdict.headline


def test_a_run_that_computes_is_busy_where_it_computes() -> None:
    run = MadeRun(actor=1)
    run.does(DRIVER, RUNNING, line="/x/train.py:40 in prepare()")
    verdict = run.verdict()
    assert (verdict.kind, verdict.headline) == (VerdictKind.BUSY, "the driver runs, at /x/train.py:40 in prepare()")


# -- child processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "cpu", "is_stuck"), [(5.0, 1.0, False), (500.0, 1.0, True), (500.0, 1.2, False)])
def test_a_child_process_that_starts_or_works_may_put(age: float, cpu: float, is_stuck: bool) -> None:
    run = MadeRun(learner=1)
    run.does("learner:0", WAITING, get(), serves=run.driver_calls("learn", "learner:0"))
    before, after = run.report(), aged(run.report())

    def beside(report: RunReport, child: ChildProcess) -> RunReport:
        return dataclasses.replace(
            report, processes=[dataclasses.replace(each, children=[child]) for each in report.processes]
        )

    assert judge(after, before).is_stuck
    verdict = judge(beside(after, ChildProcess(77, age, cpu)), beside(before, ChildProcess(77, age, 1.0)))
    assert verdict.is_stuck == is_stuck
    assert age > 60 or any("child process 77 of" in line for line in [verdict.headline, *verdict.lines])
