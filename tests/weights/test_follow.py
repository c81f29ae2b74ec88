"""``follow``: a worker's model has whole versions, whatever its methods are, and whatever becomes of the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async import Cluster, follow, publish
from rlinf_async.errors import ConfigError, DeadlineExceeded, WeightMismatch
from tests.weights.ends import Tied
from tests.weights.publishing_workers import Follower, Groups, Trainer
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


def test_entering_waits_for_version_1_and_names_it_when_its_time_is_over(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    with pytest.raises(
        DeadlineExceeded, match=r"version 1 of 'policy' from trainer:0 was not done within 0.2 s"
    ) as late:
        rollout.enter(timeout=0.2).wait(40)
    assert "publish(to=) must name group 'rollout'" in str(late.value)
    entering = rollout.enter()
    trainer.enter("rollout").wait(40)
    assert entering.wait(40) == [1]
    trainer.leave().wait(40)


def test_reading_waits_for_version_1_where_follow_was_not_entered(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    rollout.make(timeout=0.2).wait(40)
    for look, seconds in (lambda: rollout.look(0.3), "0.3"), (rollout.begin_reading, "0.2"):
        late = f"version 1 of 'policy' from trainer:0 was not done within {seconds} s"
        with pytest.raises(DeadlineExceeded, match=late):
            look().wait(40)
    rollout.leave().wait(40)
    for look, found in (rollout.look, (1, {1.0})), (rollout.begin_reading, 1):
        rollout.make().wait(40)
        looking = look()
        trainer.enter("rollout").wait(40)
        assert looking.wait(40) == [found]
        trainer.leave().wait(40)
        rollout.leave().wait(40)


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_backward_pass_over_other_weights_is_refused_and_what_is_kept_of_a_mapped_model_stays(
    launch: Launch, apply: str
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.enter("rollout", apply=apply).wait(40)
    rollout.enter(apply=apply).wait(40)
    rollout.forward().wait(40)
    rollout.keep_snapshot().wait(40)
    for value in range(2, 6):
        trainer.send(float(value)).wait(40)
        trainer.delivered().wait(40)
    assert "modified by an inplace operation" in rollout.try_to("backward").wait(40)[0]
    assert rollout.snapshot().wait(40) == [{1.0 if apply == "map" else 5.0}]
    trainer.leave().wait(40)


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_trainer_that_leaves_by_an_error_tells_its_followers_which(launch: Launch, apply: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.enter("rollout", apply=apply).wait(40)
    rollout.enter(apply=apply).wait(40)
    waiting = rollout.try_to("wait_version", 2)
    trainer.leave_by_an_error().wait(40)
    said = "ClosedError: the sender of 'policy' has left by an error: ValueError: loss is nan"
    assert waiting.wait(40) == [said]
    assert rollout.try_to("wait_version", 2).wait(40) == [said]


def test_a_trainer_that_nobody_has_launched_is_named_after_the_deadline_of_names(launch: Launch) -> None:
    rollout = launch(Follower, "rollout", 0)
    rollout.forget_names_soon().wait(40)
    for of in ("trainr", ("trainr", 2)):
        with pytest.raises(DeadlineExceeded, match=r"no group named 'trainr' within 0.3 s; there are: .*rollout"):
            rollout.enter(of, timeout=0.01).wait(40)


@pytest.mark.parametrize("enter", ["enter", "enter_blocking", "make"])
@pytest.mark.parametrize("width", [3, 400])
def test_versions_are_applied_while_a_def_method_keeps_the_loop_from_turning(
    launch: Launch, enter: str, width: int
) -> None:
    """However the worker has begun to follow; also of weights that are copied in another thread."""
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    for group in (trainer, rollout):
        group.model_of(width).wait(40)
    entering = getattr(rollout, enter)()
    trainer.enter("rollout").wait(40)
    entering.wait(40)
    rollout.wait_version(1).wait(40)
    looking = rollout.look_until(9)
    for version in range(2, 10):
        trainer.send(float(version)).wait(40)
    assert looking.wait(40)[0][-1] == 9
    trainer.leave().wait(40)


def test_weights_that_do_not_fit_are_refused_at_both_ends(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    rollout.model_of(2).wait(40)
    trainer.enter("rollout").wait(40)
    with pytest.raises(WeightMismatch, match=r"'head\.weight' has shape"):
        rollout.enter().wait(40)
    rollout.make().wait(40)
    # First what waits for the refusal: until the worker follows for the second time, it counts as one that has left.
    for attempt in (lambda: rollout.wait_version(1), rollout.look, trainer.delivered):
        with pytest.raises(WeightMismatch, match=r"'head\.weight' has shape"):
            attempt().wait(40)
    trainer.leave_by_an_error().wait(40)


def test_a_follower_may_refuse_other_dtypes(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    rollout.halve().wait(40)
    trainer.enter("rollout").wait(40)
    with pytest.raises(WeightMismatch, match="strict_dtype"):
        rollout.enter(strict_dtype=True).wait(40)
    assert rollout.enter().wait(40) == [1]
    trainer.leave().wait(40)


def test_a_name_is_free_again_where_there_can_be_no_thread_or_memory(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    assert rollout.enter_without("threads").wait(40) == ["RuntimeError: can't start new thread"]
    assert rollout.enter_without("memory").wait(40) == ["MemoryError: none is left"]
    entering = rollout.enter()
    trainer.enter("rollout").wait(40)
    assert entering.wait(40) == [1]
    trainer.leave().wait(40)


def test_two_models_have_names_and_one_is_followed_once(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    following = rollout.follow_two()
    trainer.enter("rollout").wait(40)
    trainer.enter("rollout", name="critic").wait(40)
    (first, second, said) = following.wait(40)[0]
    assert first == second == {1.0}
    assert said.startswith("RuntimeError: weights named 'policy' are followed from group 'trainer' by this worker")
    trainer.close_all().wait(40)


def test_workers_that_end_without_leaving_warn_of_nothing(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0, is_new=True), launch(Follower, "rollout", 0, is_new=True)
    logs = [Path(path) for group in (trainer, rollout) for path in group.wait_ready().log_paths]
    before = {path: len(path.read_text()) for path in logs}  # of groups that had the name before
    trainer.enter("rollout").wait(40)
    rollout.enter().wait(40)
    trainer.send(2.0).wait(40)
    rollout.close()
    trainer.close()
    said = [path.read_text()[begin:] for path, begin in before.items()]
    assert not [text for text in said if "arn" in text or "rror" in text]


def test_a_forked_child_is_told_at_once(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.enter("rollout").wait(40)
    rollout.enter().wait(40)
    assert rollout.look_in_a_fork().wait(40)[0].startswith("ForkedProcessError: <Following of 'policy' from rank 0")
    trainer.send(2.0).wait(40)
    assert rollout.wait_version(2).wait(40) == [(2, {2.0})]
    trainer.leave().wait(40)


def test_entering_can_be_cancelled_at_any_step_and_leaves_nothing(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Follower, "rollout", 0)
    trainer.enter("rollout").wait(40)
    rollout.enter().wait(40)
    rollout.leave().wait(40)
    ((descriptors, threads),) = rollout.held().wait(40)
    assert True in [rollout.enter_cancelled(turns).wait(40)[0] for turns in range(12)]
    ((now, still),) = rollout.held().wait(40)
    assert now <= descriptors, "what the link before had may be closed only now"
    assert still == threads
    assert rollout.enter().wait(40) == [1]
    trainer.leave().wait(40)


def test_wrong_options_and_places_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"follow\(\) has no option 'verfy': 'verify', perhaps\?"):
        follow(Tied(), "trainer", verfy="sha256")
    with pytest.raises(ConfigError, match=r"publish\(\) cannot do strict_dtype=True: each follower has its own"):
        publish(Tied(), "rollout", strict_dtype=True)
    with pytest.raises(ConfigError, match=r"follow\(\) cannot do slots=3: the trainer decides"):
        follow(Tied(), "trainer", slots=3)
    with pytest.raises(ValueError, match="timeout= takes seconds"):
        follow(Tied(), "trainer", timeout=-1)
    for of in (3, None, ("trainer", -1), ("trainer", "0"), (3, 0), ["trainer"]):
        with pytest.raises(TypeError, match="of= is the trainer's group"):
            follow(Tied(), of)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="this process is none"):
        follow(Tied(), "trainer")
