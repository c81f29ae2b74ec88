"""Step d: the examples' configurations on the GPU, a few training steps of each."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rlinf_async.hardware.nvidia import read_use
from tests.gpu.run import CHECKOUT
from tests.gpu.step import Step, main

REASONING = ["runner.max_steps=3", "cluster.fake_gpus=null", "runner.eval_interval=0", "data.train_size=1024",
             "data.held_out_size=64", "actor.warm_start.steps=10"]  # fmt: skip
EMBODIMENT = ["runner.max_epochs=3", "actor.device=cuda", "rollout.device=cuda", "runner.eval.interval=3",
              "runner.eval.episodes=2", "runner.save_interval=0"]  # fmt: skip


def run(script: str, config: str, overrides: list[str]) -> str:
    """Run an example; return its last line, and the most memory of the GPU that was in use meanwhile."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, str(CHECKOUT / script), "--config", config, *overrides,
                   f"runner.logger.log_path={folder}/log"]  # fmt: skip
        output = Path(folder) / "output"
        used_before = used()
        most, began = used_before, time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder)
            try:
                while (status := process.poll()) is None:
                    most = max(most, used())
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.5)
            finally:
                process.kill()
                process.wait()
        text = output.read_text()
        print(text, file=sys.stderr)
        assert status == 0, f"exit status {status}; the log has the output"
        assert most > used_before + (64 << 20), "no memory of the GPU was in use"
        return f"{time.monotonic() - began:.1f} s, {(most - used_before) >> 20} MiB; {text.splitlines()[-1][:120]}"


def used() -> int:
    return sum(use["used"] for use in read_use(["0"]).values())


def on_gpu(name: str, script: str, config: str, overrides: list[str]) -> Callable[[Step], str]:
    def check(step: Step) -> str:
        return run(script, config, overrides)

    check.__name__ = f"check_{name}"
    return check


GRPO = "examples/reasoning/main_grpo.py"
CHECKS = [
    on_gpu("reasoning_disaggregated", GRPO, "two_terms_disaggregated", REASONING),
    on_gpu("reasoning_collocated", GRPO, "two_terms_collocated", REASONING),
    on_gpu("embodiment_cartpole", "examples/embodiment/train_embodied_agent.py", "cartpole_ppo", EMBODIMENT),
]

if __name__ == "__main__":
    main("d", CHECKS)
