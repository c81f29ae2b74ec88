"""The ``cluster`` section: what it says, and every complaint about it with its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from omegaconf import OmegaConf

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ClusterConfig, load_document
from rlinf_async.errors import ConfigError
from rlinf_async.hardware import HardwareConfig, NodeHardwareConfig
from rlinf_async.profiling import NsightConfig

RLINF = """
cluster:
  num_nodes: 18
  component_placement:
    actor: {node_group: a800, placement: 0-63}
  node_groups:
    - label: a800
      node_ranks: 0-7
      env_configs:
        - node_ranks: 0-3
          python_interpreter_path: /opt/venv/bin/python3
          env_vars:
            - GLOO_SOCKET_IFNAME: "eth0"
            - OMP_NUM_THREADS: 4
        - node_ranks: 4,6-7
          env_vars:
            - GLOO_SOCKET_IFNAME: "eth1"
    - label: franka
      node_ranks: 16-17
      hardware:
        type: Franka
        configs:
          - {node_rank: 16, robot_ip: 10.0.0.1}
          - {node_rank: 17, robot_ip: 10.0.0.2}
    - label: cpus
      node_ranks: [8, "9-15"]
      ignore_hardware: true
  profiling: {backend: nsight, worker_groups: [actor], steps: [2]}
  tracer: {enable: true, output_file: trace.json}
  lease_s: 20
  net_emulation:
    enabled: true
    bandwidth_groups: [{members: ["Env:0-1"], bandwidth_mbps: 1000}]
"""


def read(text: str) -> ClusterConfig:
    return ClusterConfig.from_dict_cfg(OmegaConf.create(text))


def group_of(**entries: Any) -> dict[str, Any]:
    """A section of four nodes with one group."""
    return {"num_nodes": 4, "node_groups": [{"label": "g", "node_ranks": "0-2", **entries}]}


def env_config_of(**entries: Any) -> dict[str, Any]:
    return group_of(env_configs=[{"node_ranks": "0-1", **entries}])


@dataclass(frozen=True)
class ArmConfig(HardwareConfig):
    port: str = "/dev/arm"


@pytest.fixture(autouse=True)
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of hardware of the user's own."""
    monkeypatch.setattr(NodeHardwareConfig, "config_registry", dict(NodeHardwareConfig.config_registry))
    NodeHardwareConfig.register_hardware_config("Arm")(ArmConfig)


def test_a_whole_section_of_rlinfs_is_understood() -> None:
    config = read(RLINF)

    assert config.num_nodes == 18
    assert [(group.label, group.node_ranks) for group in config.node_groups] == [
        ("a800", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("franka", (16, 17)),
        ("cpus", (8, 9, 10, 11, 12, 13, 14, 15)),
    ]
    assert config.component_placement == {"actor": {"node_group": "a800", "placement": "0-63"}}
    assert config.group("cpus").ignore_hardware
    assert config.group("franka").hardware_type == "Franka"
    assert isinstance(config.profiling, NsightConfig)
    assert (config.tracer.enable, config.tracer.output_file) == (True, "trace.json")
    assert config.net_emulation is not None
    assert config.net_emulation.bandwidth_groups[0].members == ("Env:0", "Env:1")


def test_nodes_of_one_group_may_have_different_variables_and_interpreters() -> None:
    group = read(RLINF).group("a800")

    assert group.env_vars(3) == {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "4"}
    assert group.env_vars(6) == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert group.env_vars(5) == {}
    assert [group.interpreter(rank) for rank in (0, 4, 5)] == ["/opt/venv/bin/python3", None, None]


def test_what_a_node_has_is_asked_by_its_rank() -> None:
    config = read(RLINF)

    assert config.get_node_labels_by_rank(3) == ["a800"]
    assert config.get_node_env_vars(7) == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert config.get_node_python_interpreter_path_by_rank(0) == "/opt/venv/bin/python3"
    assert config.get_node_python_interpreter_path(17) is None
    assert [each.node_rank for each in config.get_node_hw_configs_by_rank(17)] == [17]


def test_groups_that_share_a_node_may_differ_until_the_node_is_asked() -> None:
    groups = [
        {
            "label": label,
            "node_ranks": 0,
            "env_configs": [
                {"node_ranks": 0, "python_interpreter_path": f"/{label}/python", "env_vars": [{"A": label}, {"B": "b"}]}
            ],
        }
        for label in ("train", "serve")
    ]
    config = ClusterConfig.from_dict_cfg({"num_nodes": 1, "node_groups": groups})

    assert config.group("serve").interpreter(0) == "/serve/python"
    assert config.group("train").env_vars(0) == {"A": "train", "B": "b"}
    with pytest.raises(ValueError, match="'train' and 'serve', which want different values of A: 'train' and 'serve'"):
        config.get_node_env_vars(0)
    with pytest.raises(ValueError, match=r"different interpreters: /train/python \('train'\), /serve/python"):
        config.get_node_python_interpreter_path(0)


def test_an_empty_section_takes_all_nodes_and_switches_nothing_on() -> None:
    config = ClusterConfig.from_dict_cfg({})

    assert (config.num_nodes, config.node_groups, config.component_placement) == (0, (), None)
    assert (config.profiling, config.net_emulation, config.tracer.enable) == (None, None, False)
    assert config.metrics is None


@pytest.mark.parametrize(
    ("address", "is_open"),
    [("127.0.0.1:0", False), ("127.8.0.1:80", False), ("[::1]:9090", False), ("10.0.0.1:9090", True), ("[::]:1", True)],
)
def test_metrics_are_served_where_the_section_says(address: str, is_open: bool) -> None:
    config = ClusterConfig.from_dict_cfg({"metrics": {"address": address}})

    assert config.metrics is not None
    assert (config.metrics.address, config.metrics.is_open) == (address, is_open)
    assert read(str(config)) == config


def test_the_section_is_found_in_a_whole_configuration_whose_rest_is_left_alone() -> None:
    config = OmegaConf.create("n: 2\ncluster: {num_nodes: '${n}'}\nrunner: {log_path: '${oc.env:NOT_SET_ANYWHERE}'}")

    assert ClusterConfig.from_dict_cfg(config).num_nodes == 2
    assert ClusterConfig.from_dict_cfg(config.cluster).num_nodes == 2


def test_its_text_is_yaml_that_reads_back() -> None:
    config = read(RLINF)

    assert read(str(config)) == config


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ([], "must be a mapping"),
        ({"cluster": 3}, "cluster: the section must be a mapping, got 3"),
        ({"lease_s": 2}, r"lease_s must be a number of seconds from 3 to 3600, got 2; leave it out for RLINF_LEASE_S"),
        ({"lease_s": "long"}, "lease_s must be a number of seconds from 3 to 3600, got 'long'"),
        ({"lease_s": True}, "lease_s must be a number of seconds from 3 to 3600, got True"),
        (
            {"num_node": 1},
            r"Unknown fields \{'num_node'\} detected in cluster \(did you mean .num_nodes.\?\);",
        ),
        ({"num_nodes": 0}, "cluster.num_nodes: 'num_nodes' must be a positive integer, got 0"),
        ({"num_nodes": -1}, "'num_nodes' must be a positive integer"),
        ({"num_nodes": "2"}, "'num_nodes' must be a positive integer, got '2'"),
        ({"num_nodes": True}, "'num_nodes' must be a positive integer"),
        *(
            (
                group_of(hardware={"type": "Franka", "configs": [{"node_rank": 0, "controller_node_rank": rank}]}),
                rf"hardware.configs\[0\].controller_node_rank: controller_node_rank {rank} of a Franka is not there",
            )
            for rank in (-1, 99)
        ),
        ({"num_nodes": 10**12, "node_groups": [{"label": "g", "node_ranks": "all"}]}, "the largest is 65536"),
        ({"component_placement": "0-7"}, "component_placement must map components to ranges"),
        ({"node_groups": [{"label": "g", "node_ranks": 0}]}, "'num_nodes' must be given where there are node_groups"),
        ({"num_nodes": 1, "node_groups": {"label": "g"}}, "node_groups must be a list"),
        ({"auto_scheduler": "yes"}, "auto_scheduler must be true or false, got 'yes'"),
        ({"num_nodes": 1, "node_groups": ["g"]}, r"node_groups\[0\]: Each node yaml config must be a dictionary"),
        (group_of(lable="x"), r"\{'lable'\} detected in node group \(did you mean 'label'\?\)"),
        ({"num_nodes": 1, "node_groups": [{"node_ranks": 0}]}, r"Missing fields \['label'\] detected in node group"),
        ({"num_nodes": 1, "node_groups": [{"label": "g"}]}, r"Missing fields \['node_ranks'\] detected"),
        (group_of(label="cluster"), "'cluster' is reserved"),
        (group_of(label="node"), "'node' is reserved"),
        (group_of(label="a,b"), "label must be a text without commas"),
        (group_of(label=3), "label must be a text"),
        (group_of(node_ranks="0-x"), r"node_ranks: Error parsing node_ranks: Invalid rank format '0-x'"),
        (group_of(node_ranks="3-1"), "Error parsing node_ranks: Start rank 3 must be less than"),
        (group_of(node_ranks="0-4"), "Error parsing node_ranks: node rank 4 of '0-4' is not there: there are 0-3"),
        (group_of(node_ranks="0,0"), "Error parsing node_ranks: node rank 0 is named twice"),
        (group_of(node_ranks=[]), "Error parsing node_ranks: Invalid rank format"),
        (group_of(node_ranks=1.5), "Error parsing node_ranks: Invalid rank format 1.5"),
        (
            {"num_nodes": 2, "node_groups": [{"label": "g", "node_ranks": 0}, {"label": "g", "node_ranks": 1}]},
            r"node_groups\[1\].label: there are two node groups with the label 'g'",
        ),
        (group_of(env_configs="x"), "env_configs must be a list"),
        (group_of(env_configs=["x"]), r"env_configs\[0\]: Each node env config must be a dictionary"),
        (env_config_of(env_var=[]), r"detected in env config \(did you mean 'env_vars'\?\)"),
        (group_of(env_configs=[{"env_vars": []}]), r"Missing fields \['node_ranks'\] detected in env config"),
        (env_config_of(node_ranks="2-3"), "node_ranks 3 of an env config must be within node_ranks of the group, 0-2"),
        (env_config_of(node_ranks="?"), r"env_configs\[0\].node_ranks: Error parsing node_ranks: Invalid rank"),
        (
            group_of(env_configs=[{"node_ranks": "0-1"}, {"node_ranks": 1}]),
            r"env_configs\[1\].node_ranks: node 1 is in env_configs\[0\] already: .* must not overlap",
        ),
        (env_config_of(env_vars={"A": "1"}), "env_vars must be a list of one-key mappings"),
        (env_config_of(env_vars=["A=1"]), r"env_vars\[0\]: Each node env_var must be a dict"),
        (env_config_of(env_vars=[{"A": "1", "B": "2"}]), "exactly one key-value pair"),
        (env_config_of(env_vars=[{}]), "exactly one key-value pair"),
        (env_config_of(env_vars=[{"A": "1"}, {"A": "2"}]), r"env_vars\[1\]: the variable A is set twice"),
        (env_config_of(env_vars=[{"A": True}]), "the value of A is True, which is no text: put it in quotes"),
        (env_config_of(env_vars=[{"A": None}]), "the value of A is None"),
        (env_config_of(env_vars=[{"A=B": "1"}]), "'A=B' cannot name a variable"),
        (env_config_of(env_vars=[{"RLINF_LOG_DIR": "/"}]), r"env_vars\[0\]: RLINF_LOG_DIR is set by the framework"),
        (env_config_of(python_interpreter_path=3), "python_interpreter_path must be a text"),
        (group_of(ignore_hardware=1), "ignore_hardware must be true or false"),
        (group_of(hardware=[{}, {}]), "Cannot have multiple hardware configs"),
        (group_of(hardware="Franka"), "Each hardware config must be a dictionary"),
        (group_of(hardware={"type": "Arm", "configs": ["x"]}), "Each hardware config must be a dictionary"),
        (group_of(hardware={"type": "Arm"}), r"Missing fields \['configs'\] detected in hardware"),
        (group_of(hardware={"type": "Ram", "configs": []}), "Unsupported hardware type 'Ram'"),
        (group_of(hardware={"type": "Arm", "configs": [{"node_rank": 0, "prot": "x"}]}), "did you mean 'port'"),
        (group_of(hardware={"type": "Arm", "configs": [{"node_rank": 3}]}), "must be within node_ranks of the group"),
        (
            group_of(hardware={"type": "Arm", "configs": [{"node_rank": 0}, {"node_rank": 0}]}),
            "Duplicate hardware configs of Arm",
        ),
        (
            {
                "num_nodes": 1,
                "node_groups": [
                    {"label": label, "node_ranks": 0, "hardware": {"type": "Arm", "configs": [{"node_rank": 0}]}}
                    for label in "ab"
                ],
            },
            r"node_groups\[1\].hardware.configs\[0\]: Duplicate hardware configs: node groups 'a' and 'b' both",
        ),
        (
            group_of(hardware={"type": "Arm", "configs": []}, hardware_type="Arm"),
            "hardware_type must not be given together with hardware",
        ),
        (
            group_of(hardware={"type": "Arm", "configs": []}, ignore_hardware=True),
            "ignore_hardware and hardware exclude each other",
        ),
        (group_of(hardware_type="Accelerator", ignore_hardware=True), "ignore_hardware and hardware_type exclude"),
        (group_of(hardware_type="Acelerator"), r"Unsupported hardware type 'Acelerator' \(did you mean 'Accelerator'"),
        ({"profiling": {"enabled": True}}, "cluster.profiling: .*backend must be specified"),
        ({"profiling": {"backend": "perf"}}, "cluster.profiling: Unknown profiling backend 'perf'"),
        ({"profiling": {"backend": "nsight", "step": [1]}}, r"Unknown fields .* detected in profiling .*mean steps"),
        ({"tracer": True}, "cluster.tracer: tracer must be a mapping"),
        ({"tracer": {"enabled": True}}, r"detected in tracer \(did you mean 'enable'\?\)"),
        ({"tracer": {"enable": 1}}, "cluster.tracer.enable: enable must be true or false, got 1"),
        ({"net_emulation": []}, "cluster.net_emulation: net_emulation must be a mapping"),
        ({"metrics": "127.0.0.1:9090"}, "cluster.metrics: metrics must be a mapping such as"),
        ({"metrics": {}}, r"cluster.metrics: Missing fields \['address'\]"),
        ({"metrics": {"adress": "x"}}, r"detected in metrics \(did you mean 'address'\?\)"),
        ({"metrics": {"address": 9090}}, "cluster.metrics.address: .*an IP address and a port.*, got 9090"),
        ({"metrics": {"address": "127.0.0.1:\u0669"}}, "an IP address and a port.*, got '127.0.0.1:\u0669'"),
        ({"metrics": {"address": "[::1:9090"}}, r"an IP address and a port.*, got '\[::1:9090'"),
        ({"profiling": {"backend": ["nsight"]}}, r"cluster.profiling: Unknown profiling backend \['nsight'\]"),
        ({"tracer": {"output_file": "a\0b"}}, r"cluster.tracer.output_file: output_file must be a text, got 'a\\x00b'"),
        ({"metrics": {"address": "localhost:9090"}}, "an IP address and a port.*, got 'localhost:9090'"),
        ({"metrics": {"address": "127.0.0.1:65536"}}, "got '127.0.0.1:65536'"),
        ({"metrics": {"address": ":9090"}}, "got ':9090'"),
    ],
)
def test_a_mistake_is_an_error_that_names_the_place(section: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text) as caught:
        ClusterConfig.from_dict_cfg(section)
    assert isinstance(caught.value, ValueError)


def test_a_file_is_named_with_the_line_of_the_mistake(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "cluster:\n"
        "  num_nodes: 2\n"
        "  node_groups:\n"
        "    - label: a\n"
        "      node_ranks: 0-1\n"
        "      env_configs:\n"
        "        - node_ranks: 0\n"
        "          env_vars:\n"
        "            - A: 1\n"
        "            - B: 1\n"
        "              C: 2\n"
    )

    place = r"job.yaml:10: cluster.node_groups\[0\].env_configs\[0\].env_vars\[1\]: Each node env_var"
    with pytest.raises(ConfigError, match=place):
        ClusterConfig.from_file(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cluster: [", r"job.yaml:1: this cannot be read as YAML"),
        ("cluster: {}\ncluster: {}\n", r"job.yaml(:\d)?: this cannot be read as YAML"),
        ("cluster: {}\nnull: 3\n", "job.yaml:1: .*: its top: Incompatible key type 'NoneType'"),
        ("cluster:\n  num_nodes: ${\n", r"job.yaml:2: .*: cluster.num_nodes: no viable alternative at input '\${'"),
        ("cluster: {}\ns: !!set {a}\n", "job.yaml:2: .*: s: Value 'set' is not a supported primitive type"),
        ("cluster: {num_nodes: !!int one}\n", "job.yaml: .*: ValueError: invalid literal for int.*'one'"),
        ("cluster: {num_nodes: " + "9" * 5000 + "}\n", "job.yaml: .*: ValueError: Exceeds the limit"),
        ("cluster: " + "[" * 3000, "job.yaml: .*: RecursionError"),
        ("3\n", "job.yaml: .*: Invalid loaded object type: int"),
        ("- a\n", "job.yaml: a configuration is a mapping"),
        ("cluster:\n  num_nodes: ${missing}\n", "job.yaml:2: cluster.num_nodes: Interpolation key 'missing' not found"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        ClusterConfig.from_file(tmp_path / "job.yaml")
    with pytest.raises(ConfigError, match=r"none.yaml: cannot read the configuration"):
        load_document(tmp_path / "none.yaml")


@dataclass(frozen=True)
class Shape:
    nodes: tuple[NodeInfo, ...]


@pytest.fixture
def make_nodes() -> Callable[..., tuple[NodeInfo, ...]]:
    def make(*accelerators: int) -> tuple[NodeInfo, ...]:
        return tuple(
            NodeInfo(rank, f"n{rank}", "10.0.0.1", 8, tuple(map(str, range(count))), "NV_GPU" if count else "NO_ACCEL")
            for rank, count in enumerate(accelerators)
        )

    return make


def test_a_clusters_groups_count_their_hardware(make_nodes: Callable[..., tuple[NodeInfo, ...]]) -> None:
    section = {
        "num_nodes": 3,
        "node_groups": [
            {"label": "gpu", "node_ranks": "1-2"},
            {"label": "arm", "node_ranks": 0, "hardware": {"type": "Arm", "configs": [{"node_rank": 0}]}},
            {"label": "cpu", "node_ranks": "all", "ignore_hardware": True},
        ],
    }

    groups = ClusterConfig.from_dict_cfg(section).node_groups_for(make_nodes(2, 4, 2))

    found = {group.label: (group.node_ranks, group.counted_hardware, group.hardware_resource_count) for group in groups}
    assert found == {
        "cluster": ([0, 1, 2], "Accelerator", 8),
        "node": ([0, 1, 2], None, 3),
        "gpu": ([1, 2], "Accelerator", 6),
        "arm": ([0], "Arm", 1),
        "cpu": ([0, 1, 2], None, 3),
    }
    gpu, arm = groups[2], groups[3]
    assert gpu.get_node_by_hardware_rank(4).node_rank == 2
    assert gpu.get_local_hardware_rank(5) == 1
    assert gpu.group_ranks_to_global_ranks([0, 4], make_nodes(2, 4, 2)) == [2, 6]
    assert gpu.local_hardware_ranks == [[0, 1, 2, 3], [0, 1]]
    assert groups[1].get_local_hardware_rank(1) == -1
    assert arm.get_hardware_infos(0) == [ArmConfig(0)]
    with pytest.raises(ConfigError, match="Hardware rank 6 is out of range: node group 'gpu' has 6"):
        gpu.get_node_by_hardware_rank(6)
    with pytest.raises(ConfigError, match="node 0 is not in node group 'gpu', which has 1-2"):
        gpu.get_node_env_vars(0)


def test_a_group_with_a_node_that_the_cluster_lacks_is_refused(
    make_nodes: Callable[..., tuple[NodeInfo, ...]],
) -> None:
    config = ClusterConfig.from_dict_cfg({"num_nodes": 3, "node_groups": [{"label": "g", "node_ranks": 2}]})

    with pytest.raises(ConfigError, match="node group 'g' has node 2, but the cluster has 2 nodes"):
        config.node_groups_for(make_nodes(1, 1))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["num_nodes", "tracer", "profiling", "num_nods", "node_groups", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["all", "0-1", "nsight", ""]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["label", "node_ranks", "env_configs", "backend", "enable", "hardware"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=6,
        ),
    )
)
def test_anything_is_understood_or_refused_with_a_config_error(section: dict[str, Any]) -> None:
    try:
        config = ClusterConfig.from_dict_cfg(section)
    except ConfigError:
        return
    shuffled = dict(reversed(section.items()))
    assert ClusterConfig.from_dict_cfg(shuffled) == config


def test_two_groups_that_describe_different_robots_on_one_node_are_refused_with_both_places(tmp_path: Path) -> None:
    """A node's robots are one row: the second group's first one would have been the first group's."""
    path = tmp_path / "two.yaml"
    path.write_text("""\
cluster:
  num_nodes: 1
  node_groups:
    - label: a
      node_ranks: 0
      hardware: {type: Franka, configs: [{node_rank: 0, robot_ip: 10.0.0.2}]}
    - label: b
      node_ranks: 0
      hardware:
        type: Franka
        configs:
          - {node_rank: 0, robot_ip: 10.0.0.3}
""")
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.from_dict_cfg(load_document(path))
    text = str(caught.value)
    assert text.startswith(f"{path}:12: cluster.node_groups[1].hardware.configs[0]: node groups 'a' and 'b' both")
    assert f"{path}:6: cluster.node_groups[0].hardware.configs[0]" in text
    assert "10.0.0.2" in text
    assert "10.0.0.3" in text


def test_a_group_may_share_the_robots_that_another_one_describes() -> None:
    groups = [
        {"label": "a", "node_ranks": 0, "hardware": {"type": "Franka", "configs": [{"node_rank": 0}]}},
        {"label": "b", "node_ranks": 0, "hardware_type": "Franka"},
    ]
    read_groups = ClusterConfig.from_dict_cfg({"cluster": {"num_nodes": 1, "node_groups": groups}}).node_groups
    assert [group.hardware_type for group in read_groups] == ["Franka", "Franka"]
