"""The ``component_placement`` section of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rlinf_async.errors import ConfigError

from .flexible import FlexiblePlacementStrategy
from .inventory import ClusterShape, Inventory, format_ranks
from .node import NodePlacementStrategy
from .ranges import Segment, parse_rule
from .strategy import PlacementStrategy


class PlacementMode(Enum):
    """How the components of a job share the accelerators."""

    COLLOCATED = auto()
    """All on the same ones."""
    DISAGGREGATED = auto()
    """Each on its own."""
    HYBRID = auto()
    """Each as its rule says."""
    AUTO = auto()
    """As the framework decides."""


@dataclass(frozen=True)
class _Component:
    strategy: PlacementStrategy
    world_size: int
    resources: tuple[int, ...]


class HybridComponentPlacement:
    """Places each component of a job as its rule in ``cluster.component_placement`` says.

    A rule names accelerators, counted through the cluster, or nodes where the cluster has no accelerators, and
    optionally the processes on them (the grammar is in ``ranges``)::

        cluster:
          component_placement:
            actor,inference: 0-7      # two components, a process on each of eight accelerators
            rollout: 8-15:0-3         # four processes with two accelerators each
            env: 0-3:0-7              # eight processes, two on each of four accelerators

    Args:
        config: a mapping, an OmegaConf ``DictConfig``, or an object with attributes, that holds the section.
            A rule is a string, an integer, or a list of these.
        cluster: anything with ``nodes``.

    Raises:
        ConfigError: a section is missing, a rule is malformed, a component is named twice, or one asks for what
            the cluster does not have.
    """

    def __init__(self, config: Any, cluster: ClusterShape) -> None:
        inventory = Inventory(cluster)
        self._components: dict[str, _Component] = {}
        for names, rule in _read_rules(config):
            component = _plan(f"component '{','.join(names)}'", rule, cluster, inventory)
            for name in names:
                if name in self._components:
                    raise ConfigError(
                        f"Duplicate component names in component_placement: {name!r} has multiple placements defined"
                    )
                self._components[name] = component

    @property
    def placement_mode(self) -> PlacementMode:
        return PlacementMode.HYBRID

    @property
    def components(self) -> list[str]:
        """The names of the components, in the order of the configuration."""
        return list(self._components)

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """The strategy to launch the component with.  Raises ConfigError for an unknown name, as all of these do."""
        return self._get(component_name).strategy

    def get_world_size(self, component_name: str) -> int:
        """The number of the component's processes."""
        return self._get(component_name).world_size

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """The component's accelerators (nodes, where the cluster has no accelerators), ascending, each once."""
        return list(self._get(component_name).resources)

    def _get(self, component_name: str) -> _Component:
        try:
            return self._components[component_name]
        except KeyError:
            raise ConfigError(
                f"Unknown component name: {component_name!r} does not exist in component_placement, "
                f"which has {', '.join(map(repr, self._components)) or 'none'}"
            ) from None


def _read_rules(config: Any) -> Iterator[tuple[list[str], Any]]:
    """The names and the rule of each entry of the section."""
    section = _get_section(_get_section(config, "cluster", "the configuration"), "component_placement", "'cluster'")
    if not isinstance(section, Mapping):
        raise ConfigError(f"component_placement must map components to ranges, such as 'actor: 0-3', got {section!r}")
    for key in section:
        names = [name.strip() for name in str(key).split(",")]
        if not all(names):
            raise ConfigError(f"component_placement: a component's name is empty in {str(key)!r}")
        # get, because a DictConfig raises where the value is the mandatory one ("???") that nobody has given.
        yield names, section.get(key)


def _get_section(config: Any, name: str, where: str) -> Any:
    section = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    if section is None:
        raise ConfigError(
            f"{name} must be provided for component placement: {where} has no section {name!r}; "
            "expected cluster.component_placement"
        )
    return section


def _plan(who: str, rule: Any, cluster: ClusterShape, inventory: Inventory) -> _Component:
    num_accelerators, num_nodes = inventory.num_accelerators, len(inventory.nodes)
    if not num_nodes:
        raise ConfigError(f"{who} cannot be placed: the cluster has no nodes")
    try:
        segments = parse_rule(_get_text(rule), num_accelerators or num_nodes)
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from None
    for segment in segments:
        _check_resources_exist(who, segment, rule, inventory)
    by_process = [tuple(ranks) for segment in segments for ranks in segment.get_resources_by_process()]
    try:
        strategy = FlexiblePlacementStrategy(by_process) if num_accelerators else _place_on_nodes(by_process)
        strategy.get_placement(cluster)
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from None
    resources = tuple(rank for segment in segments for rank in segment.resources)
    return _Component(strategy, len(by_process), resources)


def _get_text(rule: Any) -> str:
    """A rule in the grammar, whichever way YAML has read it."""
    if isinstance(rule, str):
        return rule
    if isinstance(rule, int) and not isinstance(rule, bool):
        return str(rule)
    if isinstance(rule, Sequence):
        return ",".join(_get_text(segment) for segment in rule)
    if isinstance(rule, Mapping):
        raise ConfigError(
            f"expected a range such as 0-3 or 0-1:0-3, got the mapping {dict(rule)!r}: "
            "node groups are not defined for this cluster"
        )
    raise ConfigError(f"expected a range such as 0-3 or 0-1:0-3, got {rule!r}")


def _check_resources_exist(who: str, segment: Segment, rule: Any, inventory: Inventory) -> None:
    kind = "accelerator" if inventory.num_accelerators else "node"
    if segment.resources.stop <= (inventory.num_accelerators or len(inventory.nodes)):
        return
    first, last = segment.resources[0], segment.resources[-1]
    asked = f"{kind} {first}" if first == last else f"{kind}s {first}-{last}"
    have = inventory.describe_accelerators() if kind == "accelerator" else inventory.describe_nodes()
    hint = ""
    if isinstance(rule, int) and rule >= 60:
        hint = f" (YAML reads an unquoted {rule // 60}:{rule % 60} as the number {rule}: put it in quotes)"
    raise ConfigError(f"{who} asks for {asked}, the cluster has {have}{hint}")


def _place_on_nodes(nodes_by_process: list[tuple[int, ...]]) -> NodePlacementStrategy:
    for process, node_ranks in enumerate(nodes_by_process):
        if len(node_ranks) > 1:
            raise ConfigError(
                f"process {process} would get nodes {format_ranks(node_ranks)}; "
                "one process cannot run across multiple nodes"
            )
    return NodePlacementStrategy([node_ranks[0] for node_ranks in nodes_by_process])
