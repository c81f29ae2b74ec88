"""Parser of ``cluster.node_groups``: labels, node ranks, described hardware, environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlinf_async._core import dialect
from rlinf_async.configuration.document import Origin, Steps, name_steps
from rlinf_async.configuration.env_config import NodeEnvConfig, read_env_configs, read_node_ranks
from rlinf_async.configuration.node_group import ACCELERATOR, RESERVED
from rlinf_async.configuration.ranks import format_ranks
from rlinf_async.configuration.section import Section, did_you_mean, misplaced
from rlinf_async.errors import ConfigError
from rlinf_async.hardware import Hardware, NodeHardwareConfig


@dataclass(frozen=True)
class NodeGroupConfig:
    """One entry of ``node_groups``.

    Attributes:
        label: name of the group.
        node_ranks: its nodes' ranks in the cluster, ascending.
        env_configs: its nodes' interpreters and environment variables.
        hardware: hardware that cannot be detected and is therefore described here.
        ignore_hardware: True if ranks refer to nodes, whatever their hardware.
        hardware_type: kind of hardware that ranks refer to; None for accelerators, if any node has accelerators.
    """

    label: str
    node_ranks: tuple[int, ...]
    env_configs: tuple[NodeEnvConfig, ...] = ()
    hardware: NodeHardwareConfig | None = None
    ignore_hardware: bool = False
    hardware_type: str | None = None

    def __post_init__(self) -> None:
        if dialect.is_rlinf:
            object.__setattr__(self, "node_ranks", list(self.node_ranks))

    def env_vars(self, node_rank: int) -> dict[str, str]:
        """Return the variables of the group's workers on a node; an empty dict if the node has no entry."""
        config = self._env_by_rank.get(node_rank)
        return {} if config is None else dict(config.env_vars)

    def interpreter(self, node_rank: int) -> str | None:
        """Return the interpreter of the group's workers on a node; None means the node's own."""
        config = self._env_by_rank.get(node_rank)
        return None if config is None else config.python_interpreter_path

    @cached_property
    def _env_by_rank(self) -> dict[int, NodeEnvConfig]:
        return {rank: config for config in self.env_configs for rank in config.node_ranks}


def read_node_groups(
    entries: Sequence[Any], steps: Steps, origin: Origin | None, num_nodes: int
) -> tuple[NodeGroupConfig, ...]:
    """Read ``node_groups``. Raises ConfigError."""
    groups: dict[str, NodeGroupConfig] = {}
    for number, entry in enumerate(entries):
        path = (*steps, number)
        if not isinstance(entry, Mapping):
            raise misplaced(path, origin, f"Each node yaml config must be a dictionary, got {entry!r}")
        group = _read_group(entry, path, origin, num_nodes)
        if group.label in groups:
            raise misplaced((*path, "label"), origin, f"there are two node groups with the label {group.label!r}")
        _check_robots_are_described_once(group, list(groups.values()), path, origin)
        groups[group.label] = group
    return tuple(groups.values())


def _read_group(entry: Mapping[Any, Any], path: Steps, origin: Origin | None, num_nodes: int) -> NodeGroupConfig:
    section = Section(
        entry,
        path,
        origin,
        kind="node group",
        known=("label", "node_ranks", "env_configs", "hardware", "ignore_hardware", "hardware_type"),
        needed=("label", "node_ranks"),
    )
    label = section.get("label")
    if not isinstance(label, str) or not label.strip() or "," in label:
        raise section.error(f"label must be a text without commas, got {label!r}", "label")
    if label in RESERVED:
        raise section.error(f"the label {label!r} is reserved for the group of all nodes: choose another", "label")
    node_ranks = read_node_ranks(section, range(num_nodes))
    hardware = _read_hardware(section, node_ranks, num_nodes)
    hardware_type = section.text("hardware_type")
    ignore_hardware = section.flag("ignore_hardware")
    if hardware is not None and hardware_type is not None:
        raise section.error(
            "hardware_type must not be given together with hardware, which has a type of its own", "hardware_type"
        )
    if ignore_hardware and (hardware is not None or hardware_type is not None):
        other = "hardware" if hardware is not None else "hardware_type"
        raise section.error(f"ignore_hardware and {other} exclude each other: keep one of the two", "ignore_hardware")
    if hardware_type is not None and hardware_type not in (kinds := [ACCELERATOR, *Hardware.policy_registry]):
        raise section.error(
            f"Unsupported hardware type {hardware_type!r}{did_you_mean(hardware_type, kinds)}; known are: "
            f"{', '.join(dict.fromkeys(kinds))}. Hardware of your own is registered by the module that "
            "RLINF_EXT_MODULE names",
            "hardware_type",
        )
    return NodeGroupConfig(
        label=label,
        node_ranks=node_ranks,
        env_configs=read_env_configs(section.entries("env_configs"), (*path, "env_configs"), origin, node_ranks),
        hardware=hardware,
        ignore_hardware=ignore_hardware,
        hardware_type=hardware.type if hardware is not None else hardware_type,
    )


def _read_hardware(section: Section, node_ranks: Sequence[int], num_nodes: int) -> NodeHardwareConfig | None:
    described = section.get("hardware")
    if described is None:
        return None
    if isinstance(described, Sequence) and not isinstance(described, str):
        raise section.error(
            f"Cannot have multiple hardware configs in one node group, got a list of {len(described)}: "
            "hardware is one mapping with type and configs; make a node group for each type",
            "hardware",
        )
    if not isinstance(described, Mapping):
        raise section.error(f"Each hardware config must be a dictionary, got {described!r}", "hardware")
    try:
        hardware = NodeHardwareConfig.from_mapping(described)
    except ConfigError as error:
        raise section.error(str(error), "hardware") from None
    for number, config in enumerate(hardware.configs):
        if config.node_rank not in node_ranks:
            raise section.error(
                f"node_rank {config.node_rank} of a {hardware.type} must be within node_ranks of the group, "
                f"{format_ranks(node_ranks)}",
                "hardware",
                "configs",
                number,
                "node_rank",
            )
        for name, value in vars(config).items():  # such as the node that drives a robot
            if name.endswith("_node_rank") and isinstance(value, int) and not 0 <= value < num_nodes:
                text = f"{name} {value} of a {hardware.type} is not there: the cluster has {num_nodes} nodes"
                raise section.error(text, "hardware", "configs", number, name)
    return hardware


def _check_robots_are_described_once(
    group: NodeGroupConfig, others: Sequence[NodeGroupConfig], path: Steps, origin: Origin | None
) -> None:
    """Raise ConfigError if two groups describe the same kind of hardware on a node, making its ranks ambiguous."""
    if group.hardware is None:
        return
    for number, other in enumerate(others):
        if other.hardware is None or other.hardware.type != group.hardware.type:
            continue
        for index, config in enumerate(group.hardware.configs):
            for other_index, other_config in enumerate(other.hardware.configs):
                if other_config.node_rank != config.node_rank:
                    continue
                other_path = (*path[:-1], number, "hardware", "configs", other_index)
                place = f"{origin.locate(other_path)}: {name_steps(other_path)}" if origin else name_steps(other_path)
                duplicate = "Duplicate hardware configs: " if config == other_config else ""
                raise misplaced(
                    (*path, "hardware", "configs", index),
                    origin,
                    f"{duplicate}node groups {other.label!r} and {group.label!r} both describe {group.hardware.type} "
                    f"on node {config.node_rank}: {config} here, {other_config} at {place}; describe all of a node's "
                    f"{group.hardware.type} in one group, and give another that shares them "
                    f"hardware_type: {group.hardware.type}",
                )
