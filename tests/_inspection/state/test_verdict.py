"""Verdicts on runs that stand still: the kind, whom it names, and what it says that they should have done."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rlinf_async._inspection.state.run_report import (
    LOOP_BLOCKED,
    ActivityState,
    ChildProcess,
    Frame,
    LeftDriver,
    QueueReport,
    RunReport,
    Target,
    TargetKind,
    Wait,
)
from rlinf_async._inspection.state.verdict import BLOCKED_S, Verdict, VerdictKind, judge, render
from tests._support.made_reports import DRIVER, MadeRun, aged, collective, get, local, weights

WAITING, RUNNING = ActivityState.WAITING, ActivityState.RUNNING
AT_A_SEMAPHORE = [
    Frame("/x/p.py", 15, "Rollout.generate", users=True),
    Frame("/usr/lib/python3.11/asyncio/locks.py", 387, "Semaphore.acquire"),
]


def calls_in_a_circle() -> MadeRun:
    run = MadeRun(actor=1, critic=1)
    step = run.driver_calls("step", "actor:0")
    wait, value = run.call("actor:0", "value", "critic:0")
    run.does("actor:0", WAITING, wait, serves=step, line="/x/a.py:16 in Actor.step()")
    wait, _ = run.call("critic:0", "policy", "actor:0")
    run.does("critic:0", WAITING, wait, serves=value, line="/x/a.py:24 in Critic.value()")
    return run


def test_a_run_without_a_driver_names_the_one_that_has_left_last() -> None:
    report = RunReport("run", [MadeRun(actor=1).processes["actor:0"]], left=[LeftDriver(7, "n0", 5.2)])
    verdict = judge(report, report)
    told = "the driver (n0, pid 7) has left the run for 5 s, and its process has not ended"
    assert (verdict.kind, verdict.headline.partition("; ")[2]) == (VerdictKind.IDLE, told)
    report = dataclasses.replace(report, left=[])
    assert judge(report, report).headline.endswith("the driver has ended, or has not come yet")


def names(run: MadeRun, verdict: Verdict) -> set[str]:
    return {name for name, process in run.processes.items() if process.endpoint in verdict.participants}


# -- circles ----------------------------------------------------------------------------------------------------


def test_methods_that_call_each_other_are_a_deadlock_with_both_lines() -> None:
    run = calls_in_a_circle()
    verdict = run.verdict()
    assert (verdict.kind, verdict.is_stuck, names(run, verdict)) == (
        VerdictKind.DEADLOCK,
        True,
        {"actor:0", "critic:0"},
    )
    assert verdict.headline == "actor:0 and critic:0 wait for each other"
    assert verdict.lines[0] == (
        "actor:0 (n0, pid 102) waits for 11 s: critic.value() on 1 rank, at /x/a.py:16 in Actor.step()"
    )
    assert verdict.lines[2].startswith("the driver (n0, pid 100, task step) waits for 11 s")
    assert any("async def" in advice for advice in verdict.advice)


def test_a_circle_is_a_deadlock_though_others_go_on() -> None:
    run = calls_in_a_circle()
    run.does(DRIVER, ActivityState.SLEEPING, task="task monitor")
    assert run.verdict().kind is VerdictKind.DEADLOCK


def test_a_circle_over_nodes_that_do_not_all_answer_is_a_deadlock() -> None:
    run = calls_in_a_circle()
    run.missing = {"n1": "no answer"}
    assert run.verdict().kind is VerdictKind.DEADLOCK


def test_a_driver_that_asks_may_put_and_ends_no_circle() -> None:
    run = MadeRun(stage=2, learner=1)
    for rank in range(2):
        serves = (1, 9, "exchange")
        run.does(f"stage:{rank}", WAITING, run.message("recv", f"stage:{1 - rank}"), serves=serves, task="task stage")
    report = run.report()
    assert judge(aged(report), report).kind is VerdictKind.BUSY
    assert judge(aged(report), report, 1).kind is VerdictKind.DEADLOCK
    run = MadeRun(learner=1)
    run.does("learner:0", WAITING, get(), serves=(1, 9, "learn"), task="task learn")
    report = run.report()
    assert judge(aged(report), report, 1).kind is VerdictKind.BUSY


def test_two_sends_face_to_face_are_a_deadlock() -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    for rank in range(2):
        run.does(f"stage:{rank}", WAITING, run.message("send", f"stage:{1 - rank}"), serves=serves)
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.DEADLOCK, {"stage:0", "stage:1"})


def test_a_receive_against_a_broadcast_of_the_same_sender_is_a_deadlock() -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("exchange", "stage:0", "stage:1")
    run.does("stage:0", WAITING, run.message("send", "stage:1", "broadcast() to stage:1"), serves=serves)
    run.does("stage:1", WAITING, run.message("recv", "stage:0"), serves=serves)
    assert run.verdict().kind is VerdictKind.DEADLOCK


def test_different_collectives_in_one_group_are_a_deadlock_folded_over_alike_ranks() -> None:
    run = MadeRun(actor=4)
    serves = run.driver_calls("train", *(f"actor:{rank}" for rank in range(4)))
    run.does("actor:0", WAITING, collective("all_gather", [1, 2, 3]), serves=serves, line="/x/g.py:26 in train()")
    for rank in range(1, 4):
        wait = collective("broadcast", [other for other in range(4) if other != rank])
        run.does(f"actor:{rank}", WAITING, wait, serves=serves, line="/x/g.py:28 in train()")
    verdict = run.verdict()
    assert (verdict.kind, len(verdict.participants)) == (VerdictKind.DEADLOCK, 4)
    assert verdict.lines[1] == (
        "actor:1-3 (n0) wait: broadcast of process group 0, at /x/g.py:28 in train(), in a call of train() for 11 s"
    )
    assert any(advice.startswith("actor:1-3 should have come to all_gather") for advice in verdict.advice)


def test_a_task_that_gathers_itself_is_a_deadlock() -> None:
    run = MadeRun(learner=1)
    serves = run.driver_calls("run", "learner:0")
    run.does("learner:0", WAITING, serves=serves, task="task run", awaits=["task watch"])
    run.does("learner:0", WAITING, serves=serves, task="task watch", awaits=["task watch"], line="/x/l.py:29 in f()")
    verdict = run.verdict()
    assert (verdict.kind, verdict.headline) == (VerdictKind.DEADLOCK, "learner:0 waits for itself")


def test_a_call_behind_a_method_that_waits_for_it_is_a_deadlock() -> None:
    run = MadeRun(actor=1)
    step = run.driver_calls("step", "actor:0")
    wait, _ = run.call("actor:0", "policy", "actor:0")
    run.does("actor:0", WAITING, wait, serves=step)
    assert run.verdict().kind is VerdictKind.DEADLOCK


def test_coroutines_that_use_up_the_concurrency_of_a_worker_are_a_deadlock() -> None:
    run = MadeRun(actor=1, critic=1)
    step = run.driver_calls("step", "actor:0")
    wait, value = run.call("actor:0", "value", "critic:0")
    run.does("actor:0", WAITING, wait, serves=step, task="task step")
    wait, _ = run.call("critic:0", "policy", "actor:0")
    run.does("critic:0", WAITING, wait, serves=value, task="task value")
    assert run.verdict().kind is VerdictKind.DEADLOCK


def test_a_loop_that_waits_for_a_thread_which_waits_for_the_loop_is_a_deadlock() -> None:
    run = MadeRun(rollout=1)
    run.change(DRIVER, trouble=LOOP_BLOCKED)
    run.does(DRIVER, WAITING, task="task main", awaits=["thread feeder"], line="/x/b.py:34 in main()", blocks=True)
    run.does(DRIVER, WAITING, task="thread feeder", awaits=["task main"])
    run.does(DRIVER, ActivityState.SLEEPING, task="thread beat")
    verdict = run.verdict()
    assert (verdict.kind, verdict.headline.partition(":")[0]) == (VerdictKind.DEADLOCK, "the driver waits for itself")
    assert any("event loop of the driver stands still at /x/b.py:34" in advice for advice in verdict.advice)


def test_a_call_is_in_a_circle_though_one_of_the_tasks_that_it_waits_for_sleeps() -> None:
    run = calls_in_a_circle()
    critic = run.processes["critic:0"].activities[0]
    served = (critic.source, critic.number, critic.method)
    run.change("critic:0", activities=[dataclasses.replace(critic, name="task ask")])
    run.does("critic:0", ActivityState.SLEEPING, task="task beat", serves=served)
    run.does("critic:0", WAITING, task="task value", serves=served, awaits=["task ask", "task beat"])
    assert run.verdict().kind is VerdictKind.DEADLOCK


# -- nobody left --------------------------------------------------------------------------------------------------


def test_a_consumer_whose_producers_have_returned_is_left_alone() -> None:
    run = MadeRun(learner=1, env=2)
    serves = run.driver_calls("learn", "learner:0")
    run.does("learner:0", WAITING, get(), serves=serves, task="task learn")
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.NOBODY_LEFT, {"learner:0"})
    assert verdict.advice == ["somebody should have put into channel 'episodes'; nobody ever did"]


def test_those_that_have_put_and_have_ended_since_are_named() -> None:
    run = MadeRun(learner=1)
    run.does("learner:0", WAITING, get(), serves=run.driver_calls("learn", "learner:0"))
    run.queues = [QueueReport(7, "episodes", 0, 0, 0, 0, False, [], [2], [2], {"env": [0, 1, 2], "test": [1]})]
    assert run.verdict().advice == [
        "somebody should have put into channel 'episodes'; env:0-2 and test:1 did, and have ended"
    ]


def test_a_get_is_left_alone_though_items_have_other_keys() -> None:
    run = MadeRun(learner=1, env=2)
    serves = run.driver_calls("learn", "learner:0")
    run.does("learner:0", WAITING, get(), serves=serves)
    run.queues = [QueueReport(7, "episodes", 0, 6, 600, 0, False, [3, 4], [2], [2, 3, 4])]
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.NOBODY_LEFT
    assert verdict.advice == [
        "somebody should have put into channel 'episodes', whose 6 items have other keys; so far env:0-1 did"
    ]


def test_a_put_into_a_full_channel_that_nobody_empties_is_left_alone() -> None:
    run = MadeRun(rollout=1)
    run.does(DRIVER, WAITING, get(7, "prompts", "put"), task="task main")
    run.queues = [QueueReport(7, "prompts", 0, 4, 60, 4, True, [1], [], [1])]
    assert run.verdict().kind is VerdictKind.NOBODY_LEFT


@pytest.mark.parametrize("state", ["idle", "ended", "elsewhere"])
def test_a_collective_is_left_alone_by_a_rank_that_does_not_come(state: str) -> None:
    run = MadeRun(actor=4, reward=1)
    serves = run.driver_calls("refresh", *(f"actor:{rank}" for rank in range(1, 4)))
    for rank in range(1, 4):
        wait = collective("broadcast", [other for other in range(4) if other != rank])
        run.does(f"actor:{rank}", WAITING, wait, serves=serves)
    if state == "ended":
        run.change("actor:0", trouble="ended: exit code 1", answered=False)
    if state == "elsewhere":
        wait, score = run.call("actor:0", "score", "reward:0")
        run.does("actor:0", WAITING, wait, task="task refresh", serves=(1, 99, "refresh"))
        run.does("reward:0", WAITING, get(), serves=score)
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.NOBODY_LEFT
    expected = {
        "idle": "actor:0 should have come to broadcast, but is idle",
        "ended": "actor:0 should have come to broadcast, but has ended: exit code 1",
        "elsewhere": "somebody should have put into channel 'episodes'; nobody ever did",
    }
    assert expected[state] in verdict.advice


def test_a_collective_with_a_rank_that_has_ended_is_left_alone_though_another_one_is_on_its_way() -> None:
    run = MadeRun(actor=3)
    serves = run.driver_calls("train", "actor:0", "actor:1")
    run.does("actor:0", WAITING, collective("all_reduce", [1, 2]), serves=serves)
    run.does("actor:1", RUNNING, serves=serves)
    run.change("actor:2", trouble="ended: exit code 1", answered=False)
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.NOBODY_LEFT, {"actor:0"})


def test_a_message_of_a_peer_that_has_ended_will_not_come() -> None:
    run = MadeRun(stage=2)
    serves = run.driver_calls("recv", "stage:0")
    run.does("stage:0", WAITING, run.message("recv", "stage:1"), serves=serves)
    run.ended = {run.endpoint("stage:1"): "exit code 1"}
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.NOBODY_LEFT
    assert verdict.advice == ["stage:1 should have sent or received, but has ended: exit code 1"]


def test_a_message_of_a_rank_that_is_being_started_again_may_come() -> None:
    run = MadeRun(env=2)
    wait = Wait("recv", "recv() from env:0", 9.0, [Target(TargetKind.NAME, name="env")])
    run.does("env:1", WAITING, wait, serves=run.driver_calls("step", "env:1"))
    assert run.verdict().kind is VerdictKind.NOBODY_LEFT
    restart = Wait("restart", "the restart of rank 0 of group 'env'", 4.0, [])
    run.does(DRIVER, RUNNING, restart, task="supervision of 'env'", age=4.0, line=None)
    verdict = run.verdict()
    assert (verdict.kind, verdict.headline) == (
        VerdictKind.BUSY,
        "the driver waits for 5 s: the restart of rank 0 of group 'env'",
    )


AFTER_A_RESTART = Wait("call", "env.step() on 2 ranks", 20.0, [Target(TargetKind.RESTART, name="env")])


def runs_hooks(run: MadeRun, *names: str) -> tuple[int, int, str]:
    """The driver waits for a call that is held, and its supervision for the hooks of these ranks."""
    run.does(DRIVER, WAITING, AFTER_A_RESTART)
    wait, serves = run.call(DRIVER, "on_restart", *names)
    restart = Wait("restart", "on_restart() on 2 ranks of group 'env'", 9.0, wait.targets)
    run.does(DRIVER, WAITING, restart, task="supervision of 'env'", line=None)
    return serves


def test_a_hook_that_waits_for_a_rank_that_is_away_and_a_restart_that_waits_for_the_hook_are_a_circle() -> None:
    run = MadeRun(env=2)
    message = Wait("recv", "recv() from env:1", 9.0, [Target(TargetKind.RESTART, name="env")])
    run.does("env:0", WAITING, message, serves=runs_hooks(run, "env:0"))
    run.change("env:1", trouble="ended: killed by SIGKILL", answered=False)
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.DEADLOCK, {DRIVER, "env:0"})
    assert "group 'env' should have gone on after a restart, but on_restart() has not ended there" in verdict.advice


def test_a_hook_that_waits_for_what_only_a_held_call_would_bring_is_left_alone() -> None:
    run = MadeRun(env=2)
    run.does("env:0", WAITING, get(), serves=runs_hooks(run, "env:0"))
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.NOBODY_LEFT, {"env:0"})


def test_a_notebook_whose_hook_waits_may_still_do_what_that_waits_for() -> None:
    run = MadeRun(env=2)
    wait, serves = run.call(DRIVER, "on_restart", "env:0")
    restart = Wait("restart", "on_restart() on 2 ranks of group 'env'", 9.0, wait.targets)
    run.does(DRIVER, WAITING, restart, task="supervision of 'env'", line=None)
    run.does("env:0", WAITING, get(), serves=serves)
    assert run.verdict().kind is VerdictKind.BUSY


@pytest.mark.parametrize(("age", "kind"), [(9.0, VerdictKind.BUSY), (11.0, VerdictKind.DEADLOCK)])
def test_ranks_that_are_all_in_a_rendezvous_and_do_not_meet_wait_for_each_other(age: float, kind: VerdictKind) -> None:
    run = MadeRun(env=2)
    serves = run.driver_calls("step", "env:0", "env:1")
    for rank in range(2):
        wait = dataclasses.replace(collective("init_process_group", [1 - rank], ""), age=age)
        run.does(f"env:{rank}", WAITING, wait, serves=serves, age=age)
    verdict = run.verdict()
    assert verdict.kind is kind
    if kind is VerdictKind.DEADLOCK:
        assert verdict.advice[0].startswith("all ranks have come to init_process_group() and do not meet: do all give")


def test_a_version_that_an_idle_trainer_does_not_publish_is_left_alone() -> None:
    run = MadeRun(rollout=2, trainer=1)
    serves = run.driver_calls("rollout", "rollout:0", "rollout:1")
    for rank in range(2):
        run.does(f"rollout:{rank}", WAITING, weights("version 4 of 'policy'"), serves=serves)
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.NOBODY_LEFT, {"rollout:0", "rollout:1"})
    assert verdict.advice == ["somebody should have published a version of 'policy'; trainer:0 could, and is idle"]


def test_permits_that_are_not_given_back_leave_everybody_alone() -> None:
    run = MadeRun(rollout=1)
    for number in range(4):
        wait, serves = run.call(DRIVER, "generate", "rollout:0")
        run.does(DRIVER, WAITING, wait, task=f"task {number}")
        run.does("rollout:0", WAITING, local(), serves=serves, task=f"task r{number}", stack=AT_A_SEMAPHORE)
    run.does(DRIVER, WAITING, awaits=[f"task {number}" for number in range(4)], task="task main")
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.NOBODY_LEFT, {"rollout:0"})
    assert "waits, 4 times: asyncio.Semaphore" in verdict.headline
    assert verdict.advice[0].startswith(
        "another task or thread of rollout:0 should have ended the wait for asyncio.Semaphore"
    )


def test_an_exit_that_waits_for_a_thread_that_waits_is_left_alone() -> None:
    run = MadeRun(actor=2)
    run.does(DRIVER, WAITING, awaits=["thread metrics"], line=None)
    run.does(DRIVER, WAITING, local("queue.Queue.get()"), task="thread metrics", line="/x/e.py:17 in write()")
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.NOBODY_LEFT
    assert "queue.Queue.get(), at /x/e.py:17 in write()" in verdict.headline
    assert any("its exit waits for thread metrics" in advice for advice in verdict.advice)


def test_what_a_driver_waits_for_is_named_and_not_what_waits_in_the_background() -> None:
    run = MadeRun(actor=1, env=1)
    serves = run.driver_calls("step", "actor:0")
    run.does("actor:0", WAITING, run.message("recv", "env:0"), serves=serves, line="/x/a.py:3 in step()")
    run.does("env:0", WAITING, get(9, "commands"), task="task listen")
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.NOBODY_LEFT, {"actor:0"})


# -- stopped ------------------------------------------------------------------------------------------------------


def test_a_stopped_rank_that_a_driver_waits_for_is_named_with_a_way_out() -> None:
    run = MadeRun(rollout=3)
    run.driver_calls("collect", "rollout:1", asked=3)
    run.change("rollout:1", answered=False, trouble="stopped (T)")
    verdict = run.verdict()
    assert (verdict.kind, names(run, verdict)) == (VerdictKind.STOPPED, {"rollout:1"})
    assert verdict.headline == "rollout:1 is stopped, and the driver cannot go on"
    assert verdict.advice[0].startswith("kill -CONT 103 ")


def test_a_rank_in_the_debugger_is_called_so_and_is_not_to_be_continued_by_a_signal() -> None:
    run = MadeRun(rollout=3)
    run.driver_calls("collect", "rollout:1", asked=3)
    run.change("rollout:1", answered=False, trouble="in the debugger at t.py:4 in step()")
    verdict = run.verdict()
    assert verdict.headline == "rollout:1 is in the debugger, and the driver cannot go on"
    assert verdict.advice == ["rlinf-ctl debug rollout:1 attaches; after `c` or `q` it goes on"]


def test_a_stopped_driver_stops_a_run_that_does_nothing_else() -> None:
    run = MadeRun(rollout=2)
    run.change(DRIVER, answered=False, trouble="stopped by a debugger (t)")
    assert run.verdict().kind is VerdictKind.STOPPED


def test_a_stopped_rank_that_has_nothing_to_do_holds_up_nothing() -> None:
    run = MadeRun(rollout=2)
    serves = run.driver_calls("collect", "rollout:0")
    run.does("rollout:0", RUNNING, serves=serves)
    run.change("rollout:1", answered=False, trouble="stopped (T)")
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.BUSY
    assert any("rollout:1 (n0, pid 103) is stopped (T)" in line for line in verdict.lines)


def test_a_stopped_driver_is_told_though_a_rank_has_a_task_in_the_background() -> None:
    run = MadeRun(rollout=2)
    run.change(DRIVER, answered=False, trouble="stopped (T)")
    run.does("rollout:0", ActivityState.SLEEPING, task="task beat")
    assert run.verdict().kind is VerdictKind.STOPPED
    run.does("rollout:1", RUNNING, serves=(1, 9, "collect"))
    assert run.verdict().kind is VerdictKind.BUSY


def test_beside_a_stopped_rank_stands_who_has_not_come_to_a_collective() -> None:
    run = MadeRun(actor=3, rollout=1)
    serves = run.driver_calls("train", "actor:0", "actor:1", asked=3)
    for rank in range(2):
        wait = collective("all_reduce", [each for each in range(3) if each != rank])
        run.does(f"actor:{rank}", WAITING, wait, serves=serves)
    run.change("rollout:0", answered=False, trouble="stopped (T)")
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.STOPPED
    assert verdict.advice[0].startswith("kill -CONT ")
    assert verdict.advice[1:] == ["actor:2 should have come to all_reduce, but is idle"]


# -- blocked ------------------------------------------------------------------------------------------------------


def blocked(state: ActivityState = ActivityState.SLEEPING, age: float = BLOCKED_S) -> MadeRun:
    run = MadeRun(env=2)
    run.change(DRIVER, trouble=LOOP_BLOCKED)
    run.does(DRIVER, state, task="task main", line="/x/t.py:39 in hog()", age=age, blocks=True)
    return run


def test_a_driver_that_sleeps_on_its_loop_for_long_while_nothing_else_runs_is_blocked() -> None:
    verdict = blocked().verdict()
    assert (verdict.kind, verdict.is_stuck, verdict.participants) == (VerdictKind.BLOCKED, True, [1])
    what = "the driver does not run its event loop and sleeps for 301 s, at /x/t.py:39 in hog(); nothing else runs"
    assert verdict.headline == what
    assert "asyncio.to_thread" in verdict.advice[0]


def test_a_blocked_driver_that_may_be_at_work_is_busy() -> None:
    assert blocked(age=BLOCKED_S - 1).verdict().kind is VerdictKind.BUSY
    assert blocked(RUNNING).verdict().kind is VerdictKind.BUSY, "it reads, or computes on a device"
    assert blocked().verdict([1]).kind is VerdictKind.BUSY, "it has had a processor"
    report = blocked().report()
    assert judge(aged(report)).kind is VerdictKind.BUSY, "asked once"
    run = blocked()
    run.does("env:0", RUNNING, serves=(1, 9, "step"))
    assert run.verdict().kind is VerdictKind.BUSY
    run = blocked()
    run.does(DRIVER, RUNNING, task="thread reader")
    assert run.verdict().kind is VerdictKind.BUSY
    run = blocked()
    run.change("env:0", children=[ChildProcess(9, 5.0, 0.1)])
    assert run.verdict().kind is VerdictKind.BUSY
    run = blocked()
    run.missing = {"n1": "no answer"}
    assert run.verdict().kind is VerdictKind.BUSY


def test_what_would_be_stuck_without_the_stopped_rank_too_is_no_fault_of_its() -> None:
    run = calls_in_a_circle()
    run.processes["env:0"] = dataclasses.replace(
        MadeRun(env=1).processes["env:0"], endpoint=9, answered=False, trouble="stopped (T)"
    )
    assert run.verdict().kind is VerdictKind.DEADLOCK


# -- words --------------------------------------------------------------------------------------------------------


def test_one_report_proves_nothing_and_says_what_it_looks_like() -> None:
    verdict = judge(calls_in_a_circle().report())
    assert (verdict.kind, verdict.is_stuck) == (VerdictKind.BUSY, False)
    assert verdict.headline == "asked once, which does not prove it: actor:0 and critic:0 wait for each other"


def test_a_verdict_is_plain_data_and_lines_for_a_terminal() -> None:
    run = calls_in_a_circle()
    run.does(DRIVER, WAITING, awaits=["task step"], task="task \x1b[31mred\x1b]0;title\x07")
    verdict = run.verdict()
    data = json.loads(json.dumps(verdict.to_data()))
    assert (data["kind"], data["is_stuck"], data["participants"]) == ("deadlock", True, [2, 3])
    lines = render(verdict).splitlines()
    assert lines[0] == "deadlock: actor:0 and critic:0 wait for each other"
    assert lines[1].startswith("  actor:0 (n0, pid 102) waits")
    assert lines[-1].startswith("  -> ")
    assert "\x07" not in render(verdict)


def test_a_run_in_which_all_work_is_one_line_and_has_the_others_as_data() -> None:
    run = MadeRun(actor=2, env=1)
    serves = run.driver_calls("train", "actor:0", "actor:1")
    for rank in range(2):
        run.does(f"actor:{rank}", RUNNING, serves=serves, line="/x/t.py:9 in train()")
    run.does("env:0", RUNNING, serves=run.driver_calls("step", "env:0"), line="/x/t.py:5 in step()")
    verdict = run.verdict()
    headline = "actor:0-1 run train() for 11 s, at /x/t.py:9 in train(); env:0 works too; the driver waits"
    assert render(verdict) == f"busy: {headline}"
    assert len(verdict.to_data()["lines"]) == 4
    run.change("actor:1", activities=[], answered=False, trouble="stopped (T)")
    assert "stopped (T)" in render(run.verdict())


def test_two_hundred_ranks_are_one_line() -> None:
    run = MadeRun(actor=200)
    ranks = range(200)
    serves = run.driver_calls("train", *(f"actor:{rank}" for rank in ranks if rank))
    for rank in ranks[1:]:
        run.does(
            f"actor:{rank}", WAITING, collective("barrier", [each for each in ranks if each != rank]), serves=serves
        )
    verdict = run.verdict()
    assert verdict.kind is VerdictKind.NOBODY_LEFT
    assert verdict.lines[0].startswith("actor:1-199 (n0) wait: barrier")
    assert len(verdict.lines) == 2


def test_a_great_many_different_waits_are_cut_short() -> None:
    run = MadeRun(env=40)
    for rank in range(40):
        run.does(f"env:{rank}", WAITING, get(rank, f"channel {rank}"), task="task listen")
    run.does(DRIVER, WAITING, get(99), task="task main")
    assert len(run.verdict().lines) == 18


def test_the_second_report_shows_longer_waits_of_the_same_run() -> None:
    run = calls_in_a_circle()
    before = run.report()
    assert judge(aged(before), before).is_stuck
    assert not judge(before, before).is_stuck
    assert not judge(before, aged(before)).is_stuck


def test_what_only_looks_the_same_has_changed_meanwhile() -> None:
    """Each of these differs in one thing between the two reports."""
    run = calls_in_a_circle()
    before, after = run.report(), aged(run.report())
    assert judge(after, before).is_stuck
    process = after.process(2)
    assert process is not None
    activity = process.activities[0]
    assert activity.wait is not None
    for changed in (
        dataclasses.replace(activity, name="task other"),
        dataclasses.replace(activity, number=activity.number + 7),
        dataclasses.replace(activity, wait=dataclasses.replace(activity.wait, what="something else")),
        dataclasses.replace(activity, wait=dataclasses.replace(activity.wait, age=0.3)),
        dataclasses.replace(activity, state=RUNNING),
    ):
        others = [each for each in after.processes if each.endpoint != 2]
        changed_process = dataclasses.replace(process, activities=[changed])
        assert not judge(dataclasses.replace(after, processes=[*others, changed_process]), before).is_stuck


def test_of_many_tasks_that_are_awaited_eight_are_named() -> None:
    run = MadeRun(actor=1)
    tasks = [f"task {number}" for number in range(10)]
    run.does(DRIVER, WAITING, awaits=tasks, task="task main")
    for task in tasks:
        run.does(DRIVER, WAITING, awaits=["task main"], task=task)
    assert any("the end of task 0, task 1" in line and "task 7 and 2 more" in line for line in run.verdict().lines)
