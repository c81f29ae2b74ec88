"""Node groups over real ssh: every host's workers run in the interpreter and with the variables written for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts
from tests._support.virtual_environments import make_interpreter

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

MakeHosts = Callable[..., FakeHosts]

CONFIG = """
cluster:
  num_nodes: 2
  component_placement:
    actor: {{node_group: trainers, placement: 0-1}}
    env: {{node_group: everyone, placement: "0,2"}}
    agent: {{node_group: plain, placement: 0-1}}
  node_groups:
    - label: trainers
      node_ranks: 0
      env_configs:
        - node_ranks: 0
          python_interpreter_path: {trainer}
          env_vars: [{{ROLE: trainer}}, {{LD_LIBRARY_PATH: /opt/trainer}}]
    - label: everyone
      node_ranks: 0-1
      env_configs:
        - node_ranks: 0
          env_vars: [{{ROLE: first}}, {{GLOO_SOCKET_IFNAME: eth0}}]
        - node_ranks: 1
          python_interpreter_path: {simulator}
          env_vars: [{{ROLE: second}}]
    - label: plain
      node_ranks: 0-1
      ignore_hardware: true
"""

SCRIPT = """
import os, socket, sys
from omegaconf import OmegaConf
from rlinf_async import AcceleratorUtil, Cluster, HybridComponentPlacement, Worker

class Where(Worker):
    def where(self):
        names = ("ROLE", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "RLINF_NODE_RANK", "NODE_GROUP_LABEL", "EXTENDED")
        return [socket.gethostname(), os.path.basename(sys.prefix), *(os.environ.get(name, "-") for name in names)]

    def reduce(self):
        import torch
        torch.distributed.init_process_group(AcceleratorUtil.get_ccl_backend())
        value = torch.ones(1)
        torch.distributed.all_reduce(value)
        return value.item()

if __name__ == "__main__":
    config = OmegaConf.load(sys.argv[1])
    with Cluster(cluster_cfg=sys.argv[1]) as cluster:
        placement = HybridComponentPlacement(config, cluster)
        groups = {}
        for name in placement.components:
            groups[name] = Where.create_group().launch(cluster, placement.get_strategy(name), name=name)
        for name, group in groups.items():
            for facts in group.where().wait():
                print("IS", name, *facts, sep="|")
        print("SUM", groups["env"].reduce().wait())
        print("LABELS", [node.node_labels for node in cluster.nodes])
        print("SIMS", cluster.get_node_group("sims").node_ranks)
"""

EXTENSION = "import os\ndef register():\n    os.environ['EXTENDED'] = 'yes'\n"


def test_each_hosts_workers_have_the_interpreter_and_the_variables_of_their_node_group(
    fake_hosts: MakeHosts, tmp_path: Path
) -> None:
    hosts = fake_hosts(2)
    shared = hosts.directory
    interpreters: dict[str, Any] = {
        name: make_interpreter(shared / name) for name in ("trainer", "simulator", "everywhere")
    }
    config, script, nodes = tmp_path / "config.yaml", tmp_path / "where.py", tmp_path / "nodes.txt"
    config.write_text(CONFIG.format(**interpreters))
    script.write_text(dedent(SCRIPT))
    (tmp_path / "extension_of_mine.py").write_text(EXTENSION)
    # Listed the other way round: RLINF_NODE_RANK decides.
    nodes.write_text(
        f"node1 fake_gpus=2 labels=sims python={interpreters['everywhere']} env.RLINF_NODE_RANK=1\n"
        "node0 fake_gpus=2 env.LD_LIBRARY_PATH=/usr/mine env.RLINF_NODE_RANK=0\n"
    )
    done = hosts.driver.run(
        [
            *(sys.executable, "-m", "rlinf_launcher", "--ssh-args", " ".join(hosts.ssh_args), "--hosts", nodes),
            *("-e", "RLINF_EXT_MODULE=extension_of_mine", "--sync", tmp_path, "--", script, config),
        ],
        cwd=CHECKOUT,
        timeout=150,
    )
    own = Path(sys.prefix).name
    told = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("IS|")]
    assert told == [
        ["actor", "node0", "trainer", "trainer", "/opt/trainer:/usr/mine", "0", "0", "trainers", "yes"],
        ["actor", "node0", "trainer", "trainer", "/opt/trainer:/usr/mine", "1", "0", "trainers", "yes"],
        ["env", "node0", own, "first", "/usr/mine", "0", "0", "everyone", "yes"],
        ["env", "node1", "simulator", "second", "-", "0", "1", "everyone", "yes"],
        ["agent", "node0", own, "-", "/usr/mine", "", "0", "plain", "yes"],
        ["agent", "node1", "everywhere", "-", "-", "", "1", "plain", "yes"],
    ]
    assert "SUM [2.0, 2.0]" in done.stdout
    assert "SIMS [1]" in done.stdout, "a label of the hosts file is a node group"
    assert "LABELS [('trainers', 'everyone', 'plain'), ('sims', 'everyone', 'plain')]" in done.stdout
