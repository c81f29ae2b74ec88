"""The embodiment example, as it is, in a simulated cluster: kills, and the same parameters in two runs of a seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

PROGRAM = '''
import hashlib, io, contextlib, logging, sys
from pathlib import Path

checkout, folder = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(checkout / "examples" / "embodiment"), str(checkout / "examples")]
logging.disable(logging.CRITICAL)

import gymnasium, numpy as np, torch
import train_embodied_agent as example
from gymnasium.spaces import Box
from rlinf_async.testing import SimCluster

torch.set_num_threads(1)


class StandIn(gymnasium.Env):
    """A point on a line, which is to stay near the middle."""

    observation_space = Box(-10, 10, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.state.copy(), {}

    def step(self, action):
        place, speed = self.state
        speed = np.clip(speed + 0.1 * float(action[0]), -1, 1)
        self.state = np.array([np.clip(place + 0.1 * speed, -10, 10), speed], np.float32)
        self.steps += 1
        return self.state.copy(), float(1 - abs(place)), False, self.steps >= 50, {}


gymnasium.register("StandIn-v0", StandIn)


def train(name, seed):
    log = folder / name
    cfg = example.parse_arguments([
        "env.id=StandIn-v0", "env.total_num_envs=4", "algorithm.rollout_steps=8", "algorithm.update_epochs=2",
        "actor.global_batch_size=32", "actor.micro_batch_size=32", "runner.max_epochs=20", "runner.save_interval=20",
        "runner.eval.episodes=2", "runner.eval.interval=0", "runner.seed=1", f"runner.logger.log_path={log}",
        "cluster.num_nodes=3", "rollout.placement=workers", "cluster.component_placement.actor=0:0",
        "cluster.component_placement.env=1-2:0-1", "cluster.component_placement.rollout=1-2:0-1",
        *(f"cluster.supervision.{group}.{fact}" for group in ("env", "rollout")
          for fact in ("restart=rank", "max_restarts=100")),
    ])
    sim = SimCluster(nodes=3, seed=seed)

    def main():
        sim.scheduler.after(0.3, lambda: killed.append(sim.kill("rollout", 1)))
        sim.scheduler.after(0.45, lambda: killed.append(sim.kill("env", 0)))
        example.main(cfg)

    killed = []
    with contextlib.redirect_stdout(io.StringIO()) as output:
        sim.run(main)
    lines = output.getvalue().splitlines()
    assert killed == [True, True], killed
    (checkpoint,) = sorted((log / "checkpoints").iterdir())[-1:]
    state = torch.load(checkpoint, weights_only=False)
    digest = hashlib.sha256()

    def feed(value):
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                feed(value[key])

    feed({name: value for name, value in state.items() if name not in ("config", "episodes")})
    print(name, state["step"], digest.hexdigest(), sum("step " in line for line in lines), round(sim.now, 3))


train("first", 3)
train("second", 3)
'''


@pytest.mark.slow
def test_it_trains_through_two_kills_to_the_same_parameters_twice(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", str(CHECKOUT), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    first, second = (line.split() for line in done.stdout.splitlines()[-2:])
    assert first[1] == "20"
    assert first[1:3] == second[1:3], "the parameters of two runs of one seed differ"
