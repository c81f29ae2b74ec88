"""Node groups of a configuration: their variables, interpreters and hardware reach the workers placed in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlinf_async import (
    Cluster,
    ConfigError,
    FlexiblePlacementStrategy,
    Hardware,
    LaunchError,
    NodePlacementStrategy,
    Worker,
)
from rlinf_async.configuration import ClusterConfig
from tests._support.virtual_environments import make_interpreter
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

CONFIG = """
cluster:
  num_nodes: 2
  component_placement: {}
  node_groups:
    - label: both
      node_ranks: 0-1
      env_configs:
        - node_ranks: 0
          python_interpreter_path: ${interpreter}
          env_vars:
            - WHO: zero
            - PATH: /opt/zero
            - PYTHONPATH: ${modules}
        - node_ranks: 1
          env_vars:
            - WHO: one
    - label: second
      node_ranks: 1
      env_configs:
        - node_ranks: 1
          env_vars:
            - LD_LIBRARY_PATH: /opt/second
    - label: plain
      node_ranks: 0-1
      ignore_hardware: true
    - label: arms
      node_ranks: 1
      hardware:
        type: Franka
        configs:
          - {node_rank: 1, robot_ip: 10.0.0.2, camera_serials: [a1, a2]}
          - {node_rank: 1, robot_ip: 10.0.0.3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node-groups")


@pytest.fixture(scope="module")
def config(folder: Path) -> Any:
    interpreter = make_interpreter(folder / "venv")
    (folder / "modules").mkdir()
    (folder / "modules" / "only_there.py").write_text("WORD = 'found'")
    values = {"interpreter": str(interpreter), "modules": str(folder / "modules")}
    return OmegaConf.merge(OmegaConf.create(CONFIG), OmegaConf.create(values))


@pytest.fixture(scope="module")
def cluster(config: Any) -> Iterator[Cluster]:
    os.environ["LD_LIBRARY_PATH"] = "/usr/lib/mine"
    with Cluster(cluster_cfg=config, local_nodes=2, fake_gpus=2, log_to_driver=False) as cluster:
        yield cluster
    del os.environ["LD_LIBRARY_PATH"]


def launched(cluster: Cluster, strategy: Any, name: str, kind: Any = Plain, **options: Any) -> Any:
    return closing(kind.create_group().launch(cluster, strategy, name=name, **options))


def test_the_nodes_of_one_group_have_variables_and_interpreters_of_their_own(cluster: Cluster, folder: Path) -> None:
    with launched(cluster, FlexiblePlacementStrategy([[0], [1], [2]], "both"), "both") as group:
        assert group.environment("WHO").wait() == ["zero", "zero", "one"]
        assert group.environment("NODE_GROUP_LABEL").wait() == ["both"] * 3
        own = str(folder / "venv")
        prefixes = group.run("sys.prefix").wait()
        assert prefixes[:2] == [own, own]
        assert prefixes[2] != own
        assert group.run("__import__('torch').__name__").wait() == ["torch"] * 3
        places = group.execute_on(0).run("[p for p in sys.path if p.endswith('site-packages')]").wait()
        assert places[0][0].startswith(own), "its own packages come before those of the script's interpreter"
        paths = group.environment("PATH").wait()
        assert paths[0] == paths[1]
        assert paths[0].startswith("/opt/zero:")
        assert set(paths[0].split(":")) == {"/opt/zero", *os.environ["PATH"].split(":")}
        assert paths[2] == os.environ["PATH"]
        assert group.execute_on(0).run("__import__('only_there').WORD").wait() == ["found"]
        with pytest.raises(ModuleNotFoundError):
            group.execute_on(2).run("__import__('only_there')").wait()


def test_a_groups_own_variables_win_over_the_configurations(cluster: Cluster) -> None:
    own = {"WHO": "mine", "PATH": "/mine"}
    with launched(cluster, NodePlacementStrategy([0, 1], "both"), "own", env=own) as group:
        assert group.environment("WHO").wait() == ["mine"] * 2
        assert group.environment("PATH").wait() == ["/mine"] * 2


def test_what_is_read_at_exec_reaches_the_template_joined_with_the_nodes_own(cluster: Cluster) -> None:
    with launched(cluster, NodePlacementStrategy([0], "second"), "second") as group:
        assert group.environment("LD_LIBRARY_PATH").wait() == ["/opt/second:/usr/lib/mine"]
        assert group.environment("WHO").wait() == [None]
        read_at_exec = "Path('/proc/self/environ').read_bytes().split(b'LD_LIBRARY_PATH=')[1].split(b'\\0')[0].decode()"
        assert group.run(read_at_exec).wait() == ["/opt/second:/usr/lib/mine"]


def test_workers_of_no_group_in_particular_get_what_the_groups_of_their_node_agree_on(cluster: Cluster) -> None:
    with launched(cluster, NodePlacementStrategy([0, 1]), "anywhere") as group:
        assert group.environment("WHO").wait() == ["zero", "one"]


def test_a_group_that_ignores_hardware_places_on_nodes_and_shows_no_device(cluster: Cluster) -> None:
    with launched(cluster, NodePlacementStrategy([0, 1], "plain"), "plain") as group:
        assert group.environment("ACCELERATOR_TYPE").wait() == ["NO_ACCEL"] * 2
        assert group.environment("CUDA_VISIBLE_DEVICES").wait() == [""] * 2
        assert group.run("self.global_accelerator_ids").wait() == [[], []]


def test_a_worker_that_is_placed_on_a_robot_knows_it(cluster: Cluster) -> None:
    with launched(cluster, FlexiblePlacementStrategy([[0], [1]], "arms"), "arms") as group:
        assert group.run("self.hardware_type").wait() == ["Franka"] * 2
        assert group.run("[info.config.robot_ip for info in self.hardware_infos]").wait() == [
            ["10.0.0.2"],
            ["10.0.0.3"],
        ]
        infos = [entry.worker.hardware_infos for entry in group.worker_info_list]
        assert [info.config.camera_serials for (info,) in infos] == [["a1", "a2"], None]


def test_the_cluster_knows_its_groups_and_what_they_say_of_each_node(cluster: Cluster) -> None:
    assert [group.label for group in cluster.node_groups] == ["cluster", "node", "both", "second", "plain", "arms"]
    arms = cluster.get_node_group("arms")
    assert arms is not None
    assert (arms.node_ranks, arms.hardware_resource_count) == ([1], 2)
    assert cluster.get_node_group("legs") is None
    assert cluster.get_node_group() is cluster.node_groups[0]
    first, second = cluster.nodes
    assert (first.node_labels, second.node_labels) == (("both", "plain"), ("both", "second", "plain", "arms"))
    assert (first.env_vars["WHO"], second.get_hw_resource_count("Franka")) == ("zero", 2)
    assert second.get_hw_resource_count("Accelerator") == 2


class Launching(Worker):
    def labels(self) -> list[str]:
        with Cluster() as cluster:
            return [group.label for group in cluster.node_groups]

    def launch_there(self) -> list[str]:
        with Cluster() as cluster:
            strategy = FlexiblePlacementStrategy([[0], [2]], "both")
            with launched(cluster, strategy, "below") as group:
                found: list[str] = group.environment("WHO").wait()
                return found


def test_a_worker_that_launches_has_the_same_groups(cluster: Cluster) -> None:
    with launched(cluster, NodePlacementStrategy([1]), "launching", Launching) as group:
        assert group.labels().wait() == [["cluster", "node", "both", "second", "plain", "arms"]]
        assert group.launch_there().wait() == [["zero", "one"]]


# --- clusters of their own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["section", "whole", "path", "object"])
def test_a_configuration_comes_in_any_shape(shape: str, tmp_path: Path) -> None:
    whole: Any = {"cluster": {"num_nodes": 1, "node_groups": [{"label": "here", "node_ranks": "all"}]}, "runner": {}}
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(whole))
    given = {
        "section": OmegaConf.create(whole).cluster,
        "whole": whole,
        "path": path,
        "object": ClusterConfig.from_dict_cfg(whole),
    }[shape]
    with Cluster(cluster_cfg=given, log_to_driver=False) as cluster:
        assert cluster.get_node_group("here").node_ranks == [0]
        assert cluster.config == ClusterConfig.from_dict_cfg(whole)


def test_a_mistake_in_the_file_is_told_with_its_line_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("cluster:\n  num_nodes: 1\n  node_grups: []\n")
    with pytest.raises(ConfigError, match=r"config.yaml:3.*node_grups.*did you mean 'node_groups'"):
        Cluster(cluster_cfg=str(path))


def with_interpreter(path: Path) -> dict[str, Any]:
    env_configs = [{"node_ranks": "0", "python_interpreter_path": str(path)}]
    return {"num_nodes": 1, "node_groups": [{"label": "g", "node_ranks": "0", "env_configs": env_configs}]}


def test_an_interpreter_that_is_not_there_is_an_error_that_names_path_and_node(tmp_path: Path) -> None:
    with Cluster(cluster_cfg=with_interpreter(tmp_path / "python"), log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, NodePlacementStrategy([0], "g"), name="lost")
        with pytest.raises(LaunchError, match=r"python_interpreter_path '.*/python' is no program on localhost"):
            group.hello().wait()


def test_an_interpreter_without_the_framework_is_an_error_that_says_what_it_needs(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    with Cluster(cluster_cfg=with_interpreter(bare), log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, NodePlacementStrategy([0], "g"), name="bare")
        with pytest.raises(LaunchError, match=r"fix: .*/python needs torch and this version of rlinf_async"):
            group.hello().wait()


EXTENSION = """
    import os
    from rlinf_async import Hardware, HardwareInfo, HardwareResource

    def register():
        os.environ["LAMPS_KNOWN"] = "yes"

        @Hardware.register()
        class Lamp(Hardware):
            HW_TYPE = "Lamp"

            @classmethod
            def enumerate(cls, node_rank, configs=None):
                return HardwareResource("Lamp", (HardwareInfo("Lamp", "desk"), HardwareInfo("Lamp", "floor")))
"""


def test_an_extension_brings_hardware_that_workers_are_placed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lamps_extension.py").write_text(dedent(EXTENSION))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLINF_EXT_MODULE", "lamps_extension")
    monkeypatch.setenv("LAMPS_KNOWN", "")
    monkeypatch.setattr(Hardware, "policy_registry", dict(Hardware.policy_registry))  # it registers here too
    config = {"num_nodes": 1, "node_groups": [{"label": "lit", "node_ranks": "0", "hardware_type": "Lamp"}]}
    with Cluster(cluster_cfg=config, log_to_driver=False) as cluster:
        assert cluster.nodes[0].get_hw_resource_count("Lamp") == 2
        with launched(cluster, FlexiblePlacementStrategy([[0], [1]], "lit"), "lit") as group:
            assert group.run("[info.model for info in self.hardware_infos]").wait() == [["desk"], ["floor"]]
            assert group.environment("LAMPS_KNOWN").wait() == ["yes"] * 2


def test_an_extension_that_fails_is_a_warning_and_the_worker_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RLINF_EXT_MODULE", "no_such_extension")
    with Cluster(log_to_driver=False) as cluster, launched(cluster, None, "alive") as group:
        assert group.hello().wait() == [0]
        said = "".join(log.read_text() for log in (Path(cluster.log_dir) / "alive").iterdir())
    told = "the extension module 'no_such_extension' (RLINF_EXT_MODULE) is not loaded: ModuleNotFoundError"
    assert told in caplog.text
    assert told in said


def test_hardware_that_the_script_cannot_import_names_its_node_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dedent(EXTENSION).replace(
        "import os", "import os, sys\nif 'pytest' in sys.modules: raise OSError('no bus')", 1
    )
    text = text.replace("(HardwareInfo(", "(LampInfo(", 1) + "\nclass LampInfo(HardwareInfo): pass\n"
    (tmp_path / "lamps_of_nodes.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLINF_EXT_MODULE", "lamps_of_nodes")
    with pytest.raises(
        ConfigError, match=r"the hardware of node 0: .*OSError: no bus\n  fix: the script must be able to"
    ):
        Cluster(log_to_driver=False)


def test_a_nodes_variable_says_which_bus_an_arm_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The field has a default, which is none of the configuration's."""
    monkeypatch.setenv("CAN_INTERFACE", "can3")
    arm = {"type": "GimArm", "configs": [{"node_rank": 0}]}
    config = {"num_nodes": 1, "node_groups": [{"label": "arms", "node_ranks": 0, "hardware": arm}]}
    with Cluster(cluster_cfg=config, log_to_driver=False) as cluster:
        (resource,) = cluster.get_node_info(0).hardware_resources
        assert [info.config.can_interface for info in resource.infos] == ["can3"]
