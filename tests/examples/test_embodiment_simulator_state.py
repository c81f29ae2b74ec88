from __future__ import annotations

import numpy as np
import pytest
from simulators import Simulators

pytest.importorskip("mujoco")


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "InvertedPendulum-v5", "Reacher-v5", "Hopper-v5"])
def test_a_restored_simulator_goes_on_bit_for_bit_through_ends_of_episodes(task: str) -> None:
    random = np.random.default_rng(1)
    simulators = Simulators(task, [5, 6])
    actions = random.uniform(-1, 1, (130, 2, simulators.shape.action_size)).astype(np.float32)
    for action in actions[:30]:
        simulators.step(action)
    restored = Simulators(task, [7, 8])
    restored.restore(simulators.state())
    np.testing.assert_array_equal(restored.observations, simulators.observations)
    for action in actions[30:]:
        expected, step = simulators.step(action), restored.step(action)
        for name, array in vars(expected).items():
            np.testing.assert_array_equal(getattr(step, name), array, err_msg=name)
