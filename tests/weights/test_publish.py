"""``publish``: a trainer's weights for workers that follow, come, go, die and are launched again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from rlinf_async import Cluster, publish
from rlinf_async.errors import ConfigError, DeadlineExceeded, WeightMismatch, WorkerDied
from tests.weights.ends import Tied
from tests.weights.publishing_workers import Follower, Groups, Sharded, Trainer
from tests.weights.weight_workers import Launch

pytestmark = pytest.mark.shared_cluster


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        groups = Groups(cluster)
        yield groups
        groups.close()


@pytest.fixture
def launch(groups: Groups) -> Iterator[Launch]:
    yield groups
    groups.begin_anew()


def whole(seen: list[tuple[int, set[float]]], last: int) -> bool:
    return seen[-1][0] == last and all(values == {float(version)} for version, values in seen)


@pytest.mark.parametrize("train", ["train", "train_blocking"])
@pytest.mark.parametrize("collect", ["collect", "collect_blocking"])
def test_a_group_has_each_version_whole_in_coroutines_and_in_def_methods(
    launch: Launch, train: str, collect: str
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 1)
    collecting = getattr(rollout, collect)(5)
    assert getattr(trainer, train)("rollout", 5).wait(60) == [[1, 2, 3, 4, 5]]
    for seen in collecting.wait(60):
        assert whole(seen, 5), seen


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_trainer_that_yields_its_tensors_does_so_on_every_rank(launch: Launch, apply: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0, 0), launch(Follower, "rollout", 0)
    assert trainer.enter_streamed("rollout", apply=apply).wait(40) == [1, 1]
    rollout.enter(apply=apply).wait(40)
    for value in (2.0, 3.0):
        assert trainer.send(value).wait(40) == [int(value)] * 2
    assert trainer.delivered().wait(40) == [{"rollout:0": "applied"}, {}]
    assert rollout.look().wait(40) == [(3, {3.0})]
    assert trainer.count().wait(40) == [4, 4], "twice for the first version"
    trainer.leave().wait(40)


@pytest.mark.parametrize("is_first", [True, False], ids=["before the trainer", "after it"])
@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_process_below_a_rank_of_the_group_follows_too(launch: Launch, apply: str, is_first: bool) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 1)
    if is_first:
        rollout.breed(3, apply).wait(40)
    trainer.enter("rollout", apply=apply).wait(40)
    rollout.enter(apply=apply).wait(40)
    if not is_first:
        rollout.breed(3, apply).wait(40)
    assert rollout.hear_below().wait(40) == ["follows"]
    for value in (2.0, 3.0):
        trainer.send(value).wait(40)
    assert trainer.delivered().wait(40)[0]["rollout:0"] == "applied"
    assert rollout.hear_below().wait(40) == [("rollout:0:0", 3, {3.0})]
    assert rollout.end_below().wait(40) == [0]
    trainer.send(4.0).wait(40)
    trainer.delivered().wait(40)
    trainer.leave().wait(40)


@pytest.mark.parametrize("is_late", [False, True], ids=["between versions", "with a version under way"])
def test_the_death_of_a_process_below_a_rank_is_no_error_of_the_trainer(launch: Launch, is_late: bool) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 1)
    trainer.enter("rollout").wait(40)
    rollout.enter().wait(40)
    rollout.breed(9, "copy").wait(40)
    assert rollout.hear_below().wait(40) == ["follows"]
    if is_late:
        rollout.signal_below(signal.SIGSTOP).wait(40)
        trainer.send(2.0).wait(40)
    rollout.signal_below(signal.SIGKILL).wait(40)
    assert rollout.end_below().wait(40) == [-signal.SIGKILL]
    for value in (3.0, 4.0):
        trainer.send(value).wait(40)
        assert trainer.delivered().wait(40)[0]["rollout:0"] == "applied"
    trainer.leave().wait(40)


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_names_that_differ_are_mapped_by_either_side(launch: Launch, apply: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.wrap("module").wait(40)
    trainer.enter("rollout", apply=apply).wait(40)
    with pytest.raises(WeightMismatch, match=r"strip_prefix='module\.' on the trainer's side takes it off"):
        rollout.enter(apply=apply).wait(40)
    rollout.wrap("policy").wait(40)
    rollout.enter(apply=apply, rename={"policy": "module"}).wait(40)
    assert rollout.look().wait(40) == [(1, {1.0})]
    trainer.leave_by_an_error().wait(40)
    rollout.leave().wait(40)
    trainer.enter("rollout", apply=apply, strip_prefix="module.").wait(40)
    rollout.enter(apply=apply, strip_prefix="policy.").wait(40)
    trainer.send(2.0).wait(40)
    assert rollout.wait_version(2).wait(40) == [(2, {2.0})]
    trainer.leave().wait(40)


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_each_rank_that_has_a_shard_gets_its_part(launch: Launch, apply: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 1)
    for group in (trainer, rollout):
        group.model_of_rows().wait(40)
    trainer.enter("rollout", apply=apply).wait(40)
    rollout.enter_part(apply=apply).wait(40)
    for version in (2, 3):
        trainer.send_rows(10.0 * version).wait(40)
        trainer.delivered().wait(40)
        parts = [[10.0 * version + row for row in rows] for rows in ((0, 1), (2, 3))]
        assert rollout.rows().wait(40) == [([[value] * 3 for value in part], part) for part in parts]
    trainer.leave().wait(40)


def test_two_groups_follow_one_trainer(launch: Launch) -> None:
    trainer = launch(Trainer, "trainer", 0)
    groups = [launch(Follower, name, 0) for name in ("rollout", "evaluation")]
    collecting = [group.collect(3) for group in groups]
    assert trainer.train(["rollout", "evaluation"], 3).wait(60) == [[1, 2, 3]]
    for handle in collecting:
        (seen,) = handle.wait(60)
        assert whole(seen, 3), seen


def test_it_waits_for_nobody_and_a_group_that_is_launched_later_begins_with_the_latest_version(launch: Launch) -> None:
    trainer = launch(Trainer, "trainer", 0)
    assert trainer.enter("late").wait(40) == [1]
    assert trainer.send(2.0).wait(40) == [2]
    late = launch(Follower, "late", 0, 1)
    assert late.enter().wait(60) == [2, 2]
    assert late.look().wait(40) == [(2, {2.0})] * 2
    assert trainer.send(3.0).wait(40) == [3]
    assert trainer.delivered().wait(40) == [{"late:0": "applied", "late:1": "applied"}]
    trainer.leave().wait(40)


@pytest.mark.parametrize("where", ["send", "delivered", "leave"])
def test_a_name_that_nobody_has_is_an_error_after_the_deadline_of_names(launch: Launch, where: str) -> None:
    trainer = launch(Trainer, "trainer", 0)
    trainer.forget_names_soon().wait(40)
    assert trainer.enter("rolout").wait(40) == [1]
    attempt = trainer.send_until_it_fails if where == "send" else getattr(trainer, where)
    with pytest.raises(DeadlineExceeded, match=r"no group named 'rolout' within 0.3 s; there are: .*trainer"):
        attempt().wait(40)
    trainer.leave_by_an_error().wait(40)


def test_a_group_that_comes_after_the_deadline_of_names_is_a_group_like_others(launch: Launch) -> None:
    trainer = launch(Trainer, "trainer", 0)
    trainer.forget_names_soon().wait(40)
    trainer.enter("tardy").wait(40)
    time.sleep(0.4)  # the deadline passes, and nobody asks
    rollout = launch(Follower, "tardy", 0)
    assert rollout.enter().wait(40) == [1]
    assert trainer.delivered().wait(5) == [{"tardy:0": "applied"}]
    trainer.leave().wait(40)


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_follower_that_is_stopped_costs_the_trainer_and_the_others_nothing(launch: Launch, apply: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 1, 1)
    trainer.enter("rollout", apply=apply, verify="sha256").wait(40)
    rollout.enter(apply=apply, verify="sha256").wait(40)
    trainer.delivered().wait(40)
    pids = [rollout.worker_info_list[rank].worker.pid for rank in (1, 2)]  # the first of them receives for its machine
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        took = trainer.time_sends(40).wait(40)[0]
        assert max(took[2:]) < 1.0, took
        assert sorted(took)[20] < 0.05, took
        last = trainer.send(50.0).wait(40)[0]
        assert rollout.execute_on(0).wait_version(last).wait(40) == [(last, {50.0})]
        with pytest.raises(
            DeadlineExceeded, match=f"version {last} of 'policy' was not delivered to rollout:1, rollout:2 "
        ):
            trainer.delivered(0.5).wait(40)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert set(trainer.delivered().wait(40)[0].values()) == {"applied"}
    assert rollout.look().wait(40) == [(last, {50.0})] * 3
    trainer.leave().wait(40)


def test_without_versions_ahead_a_send_waits_until_the_version_before_is_delivered(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.enter("rollout", behind=0).wait(40)
    rollout.enter().wait(40)
    rollout.begin_reading().wait(40)
    assert trainer.send(2.0).wait(40) == [2]
    sending = trainer.send(3.0)
    with pytest.raises(DeadlineExceeded):
        sending.wait(0.3)
    rollout.end_reading().wait(40)
    assert sending.wait(40) == [3]
    trainer.leave().wait(40)
    assert rollout.look().wait(40) == [(3, {3.0})], "leaving waits for the last version"


def test_a_report_names_the_followers_also_those_that_have_come_since(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 1)
    trainer.enter("rollout").wait(40)
    delivering = trainer.delivered()
    entering = rollout.enter()
    assert delivering.wait(40) == [{"rollout:0": "applied", "rollout:1": "applied"}]
    assert entering.wait(40) == [1, 1]
    assert rollout.look().wait(40) == [(1, {1.0})] * 2
    trainer.leave().wait(40)


def test_ranks_that_never_follow_are_named(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 0)
    trainer.enter("rollout", ack_timeout=0.5).wait(40)
    rollout.execute_on(0).enter().wait(40)
    for wait in (lambda: trainer.delivered(0.3), trainer.delivered, trainer.leave):
        with pytest.raises(DeadlineExceeded, match="rollout:1 did not follow 'policy' within"):
            wait().wait(40)


def test_where_the_names_differ_each_sides_error_names_the_others(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.enter("rollout", name="actor", ack_timeout=1.0).wait(40)
    with pytest.raises(DeadlineExceeded, match="which has weights of 'actor' and none of 'policy'"):
        rollout.enter(timeout=1.0).wait(40)
    with pytest.raises(DeadlineExceeded, match="rollout:0, which has weights of 'policy' and none of 'actor'"):
        trainer.delivered().wait(40)


def test_a_follower_that_does_not_apply_a_version_in_time_is_named_once(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 0)
    trainer.enter("rollout", behind=0).wait(40)
    rollout.enter().wait(40)
    pid = rollout.worker_info_list[1].worker.pid
    os.kill(pid, signal.SIGSTOP)
    trainer.send(2.0, timeout=0.5).wait(40)
    with pytest.raises(DeadlineExceeded, match="rank 1 of group 'rollout'"):
        trainer.send(3.0).wait(40)
    os.kill(pid, signal.SIGCONT)
    assert trainer.send(4.0).wait(40) == [3], "what failed before is told, and the next one goes out"
    assert trainer.delivered().wait(40) == [{"rollout:0": "applied", "rollout:1": "applied"}]
    trainer.leave().wait(40)


@pytest.mark.parametrize("under_way", [True, False])
def test_a_follower_that_dies_is_named_once_and_the_others_go_on(launch: Launch, under_way: bool) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0, 0)
    trainer.enter("rollout").wait(40)
    rollout.enter().wait(40)
    trainer.delivered().wait(40)
    info = rollout.worker_info_list[1].worker
    os.kill(info.pid, signal.SIGSTOP if under_way else signal.SIGKILL)
    if under_way:
        trainer.send(2.0).wait(40)
        os.kill(info.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="rank 1 of group 'rollout'"):
        trainer.send_until_it_fails().wait(40)
    version = trainer.send(3.0).wait(40)[0]
    assert trainer.delivered().wait(40) == [{"rollout:0": "applied"}]
    assert rollout.execute_on(0).look().wait(40) == [(version, {3.0})]
    trainer.leave().wait(40)


def test_a_name_is_in_use_once_at_a_time_with_each_group(launch: Launch) -> None:
    trainer = launch(Trainer, "trainer", 0)
    (said,) = trainer.publish_twice("rollout", ["evaluation", "rollout"]).wait(40)
    assert said == (
        "weights named 'policy' are published to group 'rollout' by this worker already: close that one first, or give "
        "this one another name=, at both ends"
    )
    assert trainer.publish_twice("rollout", "evaluation").wait(40) == ["none"]
    assert trainer.publish_twice("rollout", "rollout", name="critic").wait(40) == ["none"]
    with pytest.raises(MemoryError):
        trainer.publish_without_memory().wait(40)
    assert trainer.publish_twice("rollout", "evaluation").wait(40) == ["none"], "all of them are free again"


@pytest.mark.parametrize("width", [3, 400])
def test_entering_can_be_cancelled_at_any_step(launch: Launch, width: int) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.model_of(width).wait(40)
    rollout.model_of(width).wait(40)
    assert True in [trainer.enter_cancelled("rollout", turns).wait(40)[0] for turns in range(12)]
    entering = rollout.enter()
    assert trainer.enter("rollout").wait(40) == [1]
    assert entering.wait(40) == [1]
    trainer.leave().wait(40)


def test_of_a_sharded_model_every_rank_sends_its_part(launch: Launch) -> None:
    trainer, rollout = launch(Sharded, "trainer", 0, 0), launch(Follower, "rollout", 0)
    entering = rollout.enter()
    assert trainer.enter("rollout").wait(60) == [1, 1]
    assert entering.wait(40) == [1]
    for version in range(2, 5):
        assert trainer.send(float(version)).wait(40) == [version] * 2
        assert trainer.delivered().wait(40) == [{"rollout:0": "applied"}, {}]
        assert rollout.look().wait(40) == [(version, {float(version)})]
    trainer.leave().wait(40)


def test_ranks_that_do_not_send_count_along(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0, 0), launch(Follower, "rollout", 0)
    collecting = rollout.collect(3)
    assert trainer.train("rollout", 3).wait(40) == [[1, 2, 3]] * 2
    assert whole(collecting.wait(40)[0], 3)
    assert trainer.enter("nobody").wait(40) == [1, 1]
    assert trainer.execute_on(1).send(5.0, version=7).wait(40) == [7]
    assert trainer.execute_on(1).delivered().wait(40) == [{}]
    trainer.leave_by_an_error().wait(40)


def test_wrong_options_and_places_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"publish\(\) has no option 'aply': 'apply', perhaps\?"):
        publish(Tied(), "rollout", aply="map")
    with pytest.raises(ConfigError, match=r"publish\(\) cannot do strict_dtype=True: each follower has its own"):
        publish(Tied(), "rollout", strict_dtype=True)
    for to in (3, None, [3], ["rollout", None]):
        with pytest.raises(TypeError, match="to= is the name of a group"):
            publish(Tied(), to)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="this process is none"):
        publish(Tied(), "rollout")
