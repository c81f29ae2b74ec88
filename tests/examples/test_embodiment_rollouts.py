from __future__ import annotations

import dataclasses

import numpy as np
import torch
from rollouts import (
    Actions,
    RolloutBatch,
    Transitions,
    concatenate,
    join_envs,
    share_actions,
    share_envs,
    stack_steps,
)
from seeding import evaluation_seeds, generator_for, selection_seeds, training_seeds


def transitions(envs: int, value: float, finished: int = 0) -> Transitions:
    return Transitions(
        next_observations=np.full((envs, 3), value, np.float32),
        observations=np.full((envs, 3), value, np.float32),
        rewards=np.full(envs, value, np.float32),
        terminated=np.zeros(envs, bool),
        truncated=np.zeros(envs, bool),
        finished_returns=np.full(finished, value, np.float32),
        finished_lengths=np.full(finished, 7),
    )


def test_workers_records_stand_side_by_side_in_rank_order() -> None:
    joined = concatenate([transitions(2, 1.0), transitions(3, 2.0, finished=1)])
    assert joined.rewards.tolist() == [1, 1, 2, 2, 2]
    assert joined.observations.shape == (5, 3)
    assert joined.finished_returns.tolist() == [2.0]
    assert joined.finished_lengths.tolist() == [7]


def batch(steps: int, envs: int) -> RolloutBatch:
    numbers = np.arange(steps * envs, dtype=np.float32).reshape(steps, envs)
    return stack_steps(
        [np.repeat(row[:, None], 3, axis=1) for row in numbers],
        [Actions(np.repeat(row[:, None], 2, axis=1), row, row.astype(np.int64)) for row in numbers],
        [dataclasses.replace(transitions(envs, 0.0), rewards=row) for row in numbers],
    )


def test_steps_are_stacked_along_the_first_axis() -> None:
    stacked = batch(steps=4, envs=6)
    assert stacked.observations.shape == (4, 6, 3)
    assert stacked.actions.shape == (4, 6, 2)
    assert stacked.rewards.tolist() == np.arange(24).reshape(4, 6).tolist()


def test_shares_hold_whole_simulators_and_joined_everything() -> None:
    whole = batch(steps=4, envs=6)
    shares = [share_envs(whole, slice(0, 2)), share_envs(whole, slice(2, 6))]
    assert [share.rewards.shape for share in shares] == [(4, 2), (4, 4)]
    for name, array in vars(join_envs(shares)).items():
        np.testing.assert_array_equal(array, getattr(whole, name))


def test_each_who_asked_is_answered_for_as_many_simulators_as_it_asked_for() -> None:
    decided = Actions(np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5, dtype=np.float32), np.arange(5))
    shares = share_actions(decided, [2, 0, 3])
    assert [share.actions.shape for share in shares] == [(2, 2), (0, 2), (3, 2)]
    np.testing.assert_array_equal(concatenate(shares).actions, decided.actions)
    np.testing.assert_array_equal(concatenate(shares).log_probabilities, decided.log_probabilities)


def test_no_seed_of_an_evaluation_is_ever_one_of_training() -> None:
    training = {seed for run in range(20) for step in (0, 50) for seed in training_seeds(run, step, 64)}
    selection, final = set(selection_seeds(20)), set(evaluation_seeds(20))
    assert len(training) > 2500
    assert max(training) < 2**29 <= min(selection)
    assert not selection & final
    assert max(selection) < min(final) < 2**31


def test_seeds_depend_on_run_and_step_alone() -> None:
    assert training_seeds(3, 0, 8) == training_seeds(3, 0, 8)
    assert training_seeds(3, 0, 8) != training_seeds(3, 1, 8)
    assert training_seeds(3, 0, 8) != training_seeds(4, 0, 8)


def test_each_purpose_rank_and_step_has_random_numbers_of_its_own() -> None:
    cpu = torch.device("cpu")

    def draw(purpose: str, rank: int, step: int) -> float:
        return torch.rand((), generator=generator_for(1, purpose, rank, step, cpu)).item()

    assert draw("rollout", 0, 5) == draw("rollout", 0, 5)
    assert len({draw("rollout", 0, 5), draw("rollout", 1, 5), draw("rollout", 0, 6), draw("minibatches", 0, 5)}) == 4
