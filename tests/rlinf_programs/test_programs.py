"""RLinf 0.3.0's own runners, workers and patch syncer, unedited and without Ray: PPO with an MLP on Pendulum.

``make rlinf-env`` makes the environment, ``.venv-rlinf``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts

PYTHON = CHECKOUT / ".venv-rlinf" / "bin" / "python"
PROGRAMS = Path(__file__).parent
ASYNC = ("algorithm.loss_type=decoupled_actor_critic", "+algorithm.staleness_threshold=2")
SAC = (
    "algorithm.adv_type=embodied_sac",
    "algorithm.loss_type=embodied_sac",
    "actor.model.add_value_head=false",
    "actor.model.add_q_head=true",
    "actor.global_batch_size=64",
    "actor.micro_batch_size=64",
    "+actor.critic_optim=${actor.optim}",
    "+rollout.collect_transitions=true",
    "+rollout.collect_prev_infos=false",
    "+actor.fsdp_config.grad_scaler={enabled:false,init_scale:null,growth_interval:null}",
    "+algorithm.tau=0.005",
    "+algorithm.entropy_tuning={alpha_type:softplus,initial_alpha:0.01,target_entropy:-1,optim:{type:adam,lr:3e-4,lr_scheduler:torch_constant,clip_grad:10.0}}",
    "+algorithm.replay_buffer={enable_cache:true,cache_size:200,min_buffer_size:1,sample_window_size:100}",
)

pytestmark = [
    pytest.mark.rlinf,
    pytest.mark.skipif(not PYTHON.exists(), reason="RLinf is not installed: `make rlinf-env`"),
]


def placed(nodes: int, places: str) -> list[str]:
    parts = [f"cluster.component_placement.{name}={places}" for name in ("actor", "env", "rollout")]
    return [f"cluster.num_nodes={nodes}", *parts, "runner.max_epochs=3"]


def run(tmp_path: Path, flags: list[str], program: str, *words: str, nodes: int = 1, places: str = "0-0") -> str:
    done = subprocess.run(
        [PYTHON, "-m", "rlinf_launcher", "--rlinf", *flags, PROGRAMS / program, *placed(nodes, places), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(r"Global Step: +3/3", done.stdout), done.stdout[-4000:]
    return done.stdout


def test_embodied_ppo_trains_on_one_node(tmp_path: Path) -> None:
    run(tmp_path, ["--fake-gpus", "1"], "train_pendulum.py")


def test_embodied_ppo_trains_with_two_fsdp_ranks(tmp_path: Path) -> None:
    run(tmp_path, ["--fake-gpus", "2"], "train_pendulum.py", places="0-1")


def test_embodied_ppo_trains_on_two_nodes_of_this_machine(tmp_path: Path) -> None:
    run(tmp_path, ["--local-nodes", "2", "--fake-gpus", "1"], "train_pendulum.py", nodes=2, places="0-1")


def test_embodied_sac_trains_on_one_node(tmp_path: Path) -> None:
    run(tmp_path, ["--fake-gpus", "1"], "train_pendulum.py", *SAC)


def test_asynchronous_ppo_trains_with_two_ranks_of_each_group(tmp_path: Path) -> None:
    run(tmp_path, ["--fake-gpus", "2"], "train_async.py", *ASYNC, places="0-1")


def test_asynchronous_ppo_trains_with_decoupled_routing(tmp_path: Path) -> None:
    words = (*ASYNC, "+runner.enable_decoupled_mode=true")
    run(tmp_path, ["--fake-gpus", "2"], "train_async.py", *words, places="0-1")


@pytest.mark.namespaces
def test_embodied_ppo_trains_on_two_hosts_over_ssh(fake_hosts: Callable[..., FakeHosts], tmp_path: Path) -> None:
    hosts = fake_hosts(2)
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("node0\nnode1\n")
    words = ["--rlinf", "--hosts", nodes, "--ssh-args", " ".join(hosts.ssh_args), "--fake-gpus", "1"]
    command = [PYTHON, "-m", "rlinf_launcher", *words, PROGRAMS / "train_pendulum.py", *placed(2, "0-1")]
    done = hosts.driver.run([*map(str, command)], cwd=PROGRAMS, timeout=300)
    assert re.search(r"Global Step: +3/3", done.stdout), done.stdout[-4000:]


def test_each_module_of_rlinf_that_needs_nothing_else_can_be_imported() -> None:
    """RLinf's modules fail for a library that is not installed, or for RLinf's own reasons, and for no name of ours."""
    code = """
    import importlib, pkgutil
    from rlinf_async._core import import_hook
    import_hook.install()
    import rlinf
    for module in pkgutil.walk_packages(rlinf.__path__, "rlinf.", onerror=lambda name: None):
        try:
            importlib.import_module(module.name)
        except BaseException as error:
            if "rlinf.scheduler" in str(error):
                print("BROKEN", module.name, error)
        else:
            print("IMPORTED", module.name)
    """
    done = subprocess.run([PYTHON, "-W", "ignore", "-c", dedent(code)], capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("BROKEN")]
    assert len([line for line in lines if line.startswith("IMPORTED")]) > 200, done.stderr
