from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from rollouts import TaskShape
from simulators import Simulators

TASK = "CountToThree-v0"


class CountToThree(gymnasium.Env[Any, Any]):
    """Each step counts one up and pays the action; a negative action ends the task, the third step cuts it off."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-4.0, 4.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.start = float(self.np_random.uniform())
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.observe(), float(action[0]), bool(action[0] < 0), False, {}

    def observe(self) -> Any:
        return np.array([self.count, self.start], np.float32)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register(TASK, CountToThree, max_episode_steps=3)
    yield
    gymnasium.registry.pop(TASK)


def actions(*values: float) -> Any:
    return np.array(values, np.float32)[:, None]


def test_actions_are_stretched_to_the_range_of_the_task_and_clipped() -> None:
    simulators = Simulators(TASK, [1, 2, 3])
    assert simulators.step(actions(0.0, 0.5, 9.0)).rewards.tolist() == [0.0, 2.0, 4.0]


def test_a_cut_off_episode_shows_its_last_state_and_the_first_of_the_next() -> None:
    simulators = Simulators(TASK, [1], reward_scale=0.1)
    for _ in range(2):
        step = simulators.step(actions(0.5))
        assert not step.truncated[0]
        assert step.finished_returns.size == 0
    last = simulators.step(actions(0.5))
    assert last.truncated.tolist() == [True]
    assert last.terminated.tolist() == [False]
    assert last.next_observations[0, 0] == 3
    assert last.observations[0, 0] == 0
    assert last.rewards.tolist() == [pytest.approx(0.2)]
    assert last.finished_returns.tolist() == [6.0]  # in the task's own unit
    assert last.finished_lengths.tolist() == [3]
    np.testing.assert_array_equal(simulators.observations, last.observations)


def test_a_task_that_ends_is_terminated_and_begins_again() -> None:
    simulators = Simulators(TASK, [1, 2])
    step = simulators.step(actions(-1.0, 1.0))
    assert step.terminated.tolist() == [True, False]
    assert step.observations[:, 0].tolist() == [0, 1]
    assert step.finished_returns.tolist() == [-4.0]


def test_without_restart_a_finished_simulator_stands_still() -> None:
    simulators = Simulators(TASK, [1, 2], restart=False)
    first = simulators.step(actions(-1.0, 1.0))
    second = simulators.step(actions(1.0, 1.0))
    assert simulators.finished.tolist() == [True, False]
    assert second.rewards.tolist() == [0.0, 4.0]
    assert second.observations[0].tolist() == first.next_observations[0].tolist()
    assert second.finished_returns.size == 0


def test_the_same_seeds_give_the_same_episodes_and_others_others() -> None:
    first, again, other = (Simulators(TASK, seeds) for seeds in ([1, 2], [1, 2], [3, 4]))
    np.testing.assert_array_equal(first.observations, again.observations)
    assert (first.observations[:, 1] != other.observations[:, 1]).all()
    for _ in range(3):
        step, step_again = first.step(actions(0.0, 0.0)), again.step(actions(0.0, 0.0))
    np.testing.assert_array_equal(step.observations, step_again.observations)


def test_no_simulators_is_a_legal_number_of_them() -> None:
    simulators = Simulators(TASK, [])
    assert simulators.observations.shape == (0, 2)
    assert simulators.step(np.zeros((0, 1), np.float32)).rewards.shape == (0,)


def test_a_task_without_vectors_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"env\.id: Blackjack-v1 has observations Tuple.* needs vectors"):
        Simulators("Blackjack-v1", [1])


def test_choices_are_taken_as_they_are_and_counted_from_the_first_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(task: CountToThree, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert type(action) is int
        return task.observe(), float(action), False, False, {}

    monkeypatch.setattr(CountToThree, "action_space", gymnasium.spaces.Discrete(3, start=5))
    monkeypatch.setattr(CountToThree, "step", step)
    simulators = Simulators(TASK, [1, 2])
    assert simulators.shape == TaskShape(observation_size=2, action_size=3, discrete=True)
    assert simulators.step(np.array([0, 2])).rewards.tolist() == [5.0, 7.0]
