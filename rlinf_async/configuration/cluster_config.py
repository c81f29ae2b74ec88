"""``ClusterConfig``: the validated ``cluster`` section: node groups, tracer, profiling, network emulation, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rlinf_async import settings
from rlinf_async.address import NodeInfo
from rlinf_async.configuration.document import Origin, Steps, item, load_document, origin_of, plain
from rlinf_async.configuration.metrics_config import MetricsConfig, read_metrics
from rlinf_async.configuration.net_emulation import NetEmulationConfig, read_net_emulation
from rlinf_async.configuration.node_group import NodeGroup, built_in_groups
from rlinf_async.configuration.node_group_config import NodeGroupConfig, read_node_groups
from rlinf_async.configuration.ranks import MAX_RANKS
from rlinf_async.configuration.restart_policy import RestartPolicy, read_supervision
from rlinf_async.configuration.section import Section, misplaced
from rlinf_async.errors import ConfigError
from rlinf_async.hardware import HardwareConfig
from rlinf_async.profiling import ProfileConfig, parse_profiling


@dataclass(frozen=True)
class TracerConfig:
    """``cluster.tracer``: whether to trace the run, and the trace file.

    Attributes:
        enable: True to record spans.
        output_file: path of the trace; None for a file in the run's log folder.
    """

    enable: bool = False
    output_file: str | None = None


@dataclass(frozen=True)
class ClusterConfig:
    """The ``cluster`` section of a configuration, as validated, frozen values.

    Attributes:
        num_nodes: number of nodes that the job needs; 0, the default, uses all nodes.
        component_placement: the placement rules as written; ``ComponentPlacement`` reads them.
        node_groups: configured groups, in addition to ``cluster`` and ``node``, which every cluster has.
        profiling: configuration of the profiler; None if workers are not profiled.
        tracer: configuration of the trace; disabled by default.
        fail_fast: True if a failed call that no code awaits ends blocking waits for other calls; None if not set.
        net_emulation: emulated delays and bandwidth limits; None if the network is not emulated.
        metrics: address of the metrics server; None to serve no metrics.
        lease_s: seconds of silence after which a node counts as lost; None uses ``RLINF_LEASE_S``.
        supervision: maps each group or component to its restart policy.
        auto_scheduler, use_pre_process_policy, use_wait_before_last_iter_policy: switches for
            ``ModelParallelComponentPlacement``.
    """

    num_nodes: int = 0
    component_placement: Mapping[str, Any] | None = field(default=None, hash=False)
    node_groups: tuple[NodeGroupConfig, ...] = ()
    profiling: ProfileConfig | None = None
    tracer: TracerConfig = field(default_factory=TracerConfig)
    fail_fast: bool | None = None
    net_emulation: NetEmulationConfig | None = None
    metrics: MetricsConfig | None = None
    lease_s: float | None = None
    supervision: Mapping[str, RestartPolicy] = field(default_factory=dict, hash=False)
    auto_scheduler: bool = False
    use_pre_process_policy: bool = False
    use_wait_before_last_iter_policy: bool = False
    values: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The section as plain values."""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """File and lines from which the section was read, for errors; None if it did not come from a file."""

    @classmethod
    def from_dict_cfg(cls, cfg_dict: Any) -> ClusterConfig:
        """Read the section, or a whole configuration that contains it; a mapping or an OmegaConf ``DictConfig``.

        Register custom kinds of hardware before calling this.

        Raises:
            ConfigError: a key at any level is unknown, or a value is invalid. The message names its location (with file
                and line, if known) and the most similar known key.
        """
        if isinstance(cfg_dict, ClusterConfig):
            return cfg_dict
        origin = origin_of(cfg_dict)
        if not isinstance(cfg_dict, Mapping):
            raise ConfigError(f"the cluster's configuration must be a mapping, got {cfg_dict!r}")
        values = cfg_dict
        steps: Steps = ("cluster",)
        if "cluster" in cfg_dict:
            # Read only this section, because interpolations in other sections may refer to values that only the job can
            # resolve.
            values = item(cfg_dict, "cluster", (), origin)
            if not isinstance(values, Mapping):
                raise misplaced(steps, origin, f"the section must be a mapping, got {values!r}")
        elif origin is not None:
            origin = origin.under("cluster")
        return _read(plain(values, steps, origin), steps, origin)

    @classmethod
    def from_file(cls, path: str | Path) -> ClusterConfig:
        """Read a YAML file; error messages include line numbers. Raises ConfigError."""
        return cls.from_dict_cfg(load_document(path))

    def __str__(self) -> str:
        """Return the section as YAML."""
        from omegaconf import OmegaConf

        return str(OmegaConf.to_yaml(OmegaConf.create(dict(self.values))))

    def group(self, label: str) -> NodeGroupConfig:
        """Return the node group with this label.

        Raises:
            ConfigError: there is no such group. The built-in groups ``cluster`` and ``node`` have no entry here.
        """
        for group in self.node_groups:
            if group.label == label:
                return group
        raise ConfigError(
            f"Node group not found: {label!r}; the configuration has "
            f"{', '.join(repr(group.label) for group in self.node_groups) or 'none'}"
        )

    def node_groups_for(self, nodes: Sequence[NodeInfo]) -> tuple[NodeGroup, ...]:
        """Return a cluster's node groups: ``cluster``, ``node``, and the configured groups in order.

        A worker placed in ``cluster`` or ``node`` gets the environment on which all groups of its node agree.

        Raises:
            ConfigError: a group lists a node that the cluster lacks.
        """
        by_rank = {node.node_rank: node for node in nodes}
        groups = list(built_in_groups(nodes))
        for config in self.node_groups:
            missing = [rank for rank in config.node_ranks if rank not in by_rank]
            if missing:
                raise ConfigError(
                    f"node group {config.label!r} has node {missing[0]}, but the cluster has {len(by_rank)} nodes"
                )
            groups.append(
                NodeGroup(
                    label=config.label,
                    nodes=tuple(by_rank[rank] for rank in config.node_ranks),
                    hardware_type=config.hardware_type,
                    ignore_hardware=config.ignore_hardware,
                    env_configs=config.env_configs,
                    hardware=config.hardware,
                )
            )
        return tuple(groups)

    def get_node_labels_by_rank(self, node_rank: int) -> list[str]:
        """Return the labels of the configured groups that contain a node."""
        return [group.label for group in self.node_groups if node_rank in group.node_ranks]

    def get_node_env_vars(self, node_rank: int) -> dict[str, str]:
        """Return the environment variables that a node's groups set, merged.

        Raises:
            ConfigError: two groups set different values.
        """
        variables: dict[str, str] = {}
        owner: dict[str, str] = {}
        for group in self._groups_of(node_rank):
            for name, value in group.env_vars(node_rank).items():
                if variables.setdefault(name, value) != value:
                    raise ConfigError(
                        f"node {node_rank} is in node groups {owner[name]!r} and {group.label!r}, which want different "
                        f"values of {name}: {variables[name]!r} and {value!r}; place the workers in one of the groups"
                    )
                owner.setdefault(name, group.label)
        return variables

    def get_node_python_interpreter_path(self, node_rank: int) -> str | None:
        """Return the Python interpreter that the configuration sets for a node; None keeps the node's own.

        Raises:
            ConfigError: two groups set different interpreters.
        """
        found: dict[str, str] = {}
        for group in self._groups_of(node_rank):
            path = group.interpreter(node_rank)
            if path is not None:
                found.setdefault(path, group.label)
        if len(found) > 1:
            named = ", ".join(f"{path} ({label!r})" for path, label in found.items())
            raise ConfigError(
                f"the node groups of node {node_rank} name different interpreters: {named}; "
                "place the workers in one of the groups"
            )
        return next(iter(found), None)

    get_node_python_interpreter_path_by_rank = get_node_python_interpreter_path

    def get_node_hw_configs_by_rank(self, node_rank: int) -> list[HardwareConfig]:
        """Return the hardware that the configuration describes for a node."""
        return [
            config
            for group in self._groups_of(node_rank)
            if group.hardware is not None
            for config in group.hardware.configs
            if config.node_rank == node_rank
        ]

    def _groups_of(self, node_rank: int) -> list[NodeGroupConfig]:
        return [group for group in self.node_groups if node_rank in group.node_ranks]


def _read(values: Mapping[Any, Any], steps: Steps, origin: Origin | None) -> ClusterConfig:
    keys = [each.name for each in fields(ClusterConfig) if each.name not in ("values", "origin")]
    section = Section(values, steps, origin, kind="cluster", known=keys)
    num_nodes = section.get("num_nodes", 0)
    least = 1 if "num_nodes" in section else 0
    if not isinstance(num_nodes, int) or isinstance(num_nodes, bool) or not least <= num_nodes <= MAX_RANKS:
        text = f"'num_nodes' must be a positive integer, got {num_nodes!r}; the largest is {MAX_RANKS}"
        raise section.error(text, "num_nodes")
    entries = section.entries("node_groups")
    if entries and not num_nodes:
        raise section.error("'num_nodes' must be given where there are node_groups", "node_groups")
    placement = section.get("component_placement")
    if placement is not None and not isinstance(placement, Mapping):
        raise section.error(
            f"component_placement must map components to ranges, such as 'actor: 0-3', got {placement!r}",
            "component_placement",
        )
    return ClusterConfig(
        num_nodes=num_nodes,
        component_placement=placement,
        node_groups=read_node_groups(entries, (*steps, "node_groups"), origin, num_nodes),
        profiling=_read_profiling(section),
        tracer=_read_tracer(section.get("tracer"), (*steps, "tracer"), origin),
        fail_fast=section.flag("fail_fast") if "fail_fast" in section else None,
        net_emulation=read_net_emulation(section.get("net_emulation"), (*steps, "net_emulation"), origin),
        metrics=read_metrics(section.get("metrics"), (*steps, "metrics"), origin),
        lease_s=_read_lease(section),
        supervision=read_supervision(
            section.get("supervision"), (*steps, "supervision"), origin, _components(placement or {})
        ),
        auto_scheduler=section.flag("auto_scheduler"),
        use_pre_process_policy=section.flag("use_pre_process_policy"),
        use_wait_before_last_iter_policy=section.flag("use_wait_before_last_iter_policy"),
        values=values,
        origin=origin,
    )


def _components(placement: Mapping[Any, Any]) -> list[str]:
    """Return the component names of a placement; a key such as ``"actor,rollout"`` names two components."""
    return [name.strip() for key in placement for name in str(key).split(",")]


def _read_lease(section: Section) -> float | None:
    value = section.get("lease_s")
    least, most = settings.LEASE_S.minimum, settings.LEASE_S.maximum
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        text = f"lease_s must be a number of seconds from {least:g} to {most:g}, got {value!r}"
        raise section.error(f"{text}; leave it out for {settings.LEASE_S.variable}", "lease_s")
    return float(value)


def _read_tracer(value: Any, steps: Steps, origin: Origin | None) -> TracerConfig:
    if value is None:
        return TracerConfig()
    if not isinstance(value, Mapping):
        raise misplaced(steps, origin, f"tracer must be a mapping such as {{enable: true}}, got {value!r}")
    section = Section(value, steps, origin, kind="tracer", known=("enable", "output_file"))
    return TracerConfig(section.flag("enable"), section.text("output_file"))


def _read_profiling(section: Section) -> ProfileConfig | None:
    values = section.get("profiling")
    if values is None:
        return None
    try:
        return parse_profiling(values)
    except ConfigError as error:
        raise section.error(str(error), "profiling") from None
