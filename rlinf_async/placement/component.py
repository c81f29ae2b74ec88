"""``ComponentPlacement``: a placement strategy per component, from the rules of ``cluster.component_placement``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async._core import dialect
from rlinf_async.configuration import CLUSTER_GROUP, NODE_GROUP, NodeGroup
from rlinf_async.errors import ConfigError
from rlinf_async.placement.flexible import FlexiblePlacementStrategy
from rlinf_async.placement.modes import PlacementMode
from rlinf_async.placement.node_strategy import NodePlacementStrategy
from rlinf_async.placement.numbering import ClusterShape, describe_nodes
from rlinf_async.placement.ranges import RuleSegment, parse_rule
from rlinf_async.placement.resolver import MultiNodeGroupResolver, describe_groups, find_groups, nodes_of
from rlinf_async.placement.rules import Rule, load_configuration, read_rules
from rlinf_async.placement.strategy import PlacementStrategy


@dataclass(frozen=True)
class _Component:
    rule: Rule
    strategy: PlacementStrategy
    world_size: int
    resources: tuple[int, ...]


class ComponentPlacement:
    """Places each component of a job according to its rule in ``cluster.component_placement``.

    A rule lists a component's hardware and, optionally after a colon, the processes on that hardware. Hardware ranks
    are counted across the rule's node groups (by default the whole cluster). If one of the groups has no hardware, the
    rule lists nodes instead::

        cluster:
          component_placement:
            actor,inference: 0-7      # two components, each with a process on each of eight accelerators
            rollout: 8-15:0-3         # four processes with two accelerators each
            env: 0-3:0-7              # eight processes, two on each of four accelerators
            agent:                    # two hundred processes on each of two nodes
              node_group: node
              placement: 0-1:0-399

    ``all`` means all hardware. Process ranks start at 0 and have no gaps. The number of processes must divide the
    number of pieces of hardware, or vice versa; without a colon, each piece gets one process. A rule may join ranges
    with commas: ``0-1:0-3,4:4``. An entry that names several components places all of them alike.

    Args:
        config: path of a YAML file, a configured cluster's ``cluster.config``, or a mapping, an OmegaConf
            ``DictConfig`` or an object with attributes that contains the section ``cluster``. A rule is a string, an
            integer, a list of these, or a mapping as above; its ``node_group`` is a label, several labels joined by
            commas, or a list of labels.
        cluster: object with ``nodes`` and, if there are any, ``node_groups``.

    Raises:
        ConfigError: a section is missing, a rule is malformed, a component is placed twice, or a rule lists hardware
            that the cluster lacks.
    """

    def __init__(self, config: Any, cluster: ClusterShape) -> None:
        self._components: dict[str, _Component] = {}
        self._config = load_configuration(config)
        for rule in read_rules(self._config):
            component = _plan(rule, cluster)
            for name in rule.components:
                if name in self._components:
                    raise rule.error(
                        f"Duplicate component names in component_placement: {name!r} has multiple placements defined"
                    )
                self._components[name] = component

    @property
    def placement_mode(self) -> PlacementMode:
        """The way in which the components share accelerators."""
        return PlacementMode.HYBRID

    @property
    def components(self) -> list[str]:
        """Name of each component, in the configuration's order."""
        return list(self._components)

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """Return a component's strategy. In RLinf's dialect, all components of one entry get the same object.

        Raises:
            ConfigError: there is no such component. The other methods raise it, too.
        """
        strategy = self._find_strategy(component_name)
        if dialect.is_rlinf:
            return strategy
        strategy = copy.copy(strategy)
        object.__setattr__(strategy, "component", component_name)  # the dataclass is frozen
        return strategy

    def get_world_size(self, component_name: str) -> int:
        """Return the number of the component's processes."""
        return self._get(component_name).world_size

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """Return the component's hardware (or nodes, if its rule lists nodes), counted across its node groups."""
        return list(self._get(component_name).resources)

    def _find_strategy(self, component_name: str) -> PlacementStrategy:
        return self._get(component_name).strategy

    def _get(self, component_name: str) -> _Component:
        try:
            return self._components[component_name]
        except KeyError:
            raise ConfigError(
                f"Unknown component name: {component_name!r} does not exist in component_placement, "
                f"which has {', '.join(map(repr, self._components)) or 'none'}"
            ) from None


class HybridComponentPlacement(ComponentPlacement):
    """``ComponentPlacement`` under RLinf's name: each component has its own rule and may share hardware with others."""


def _plan(rule: Rule, cluster: ClusterShape) -> _Component:
    if not cluster.nodes:
        raise rule.error(f"{rule.name} cannot be placed: the cluster has no nodes")
    try:
        groups = find_groups(cluster, rule.node_group)
        # The ranks refer to nodes if any of the groups has no hardware, because a rule cannot mix nodes and hardware.
        by_node = any(group.counted_hardware is None for group in groups)
        resolver = None if by_node else MultiNodeGroupResolver(groups)
        nodes = nodes_of(groups) if by_node else []
        segments = parse_rule(rule.text, len(nodes) if resolver is None else resolver.hardware_resource_count)
    except ConfigError as error:
        raise rule.error(f"{rule.name}: {error}") from None
    if resolver is None:
        counted = f"{describe_groups(groups)} {describe_nodes([node for _, node in nodes])}"
        _check_resources_exist(rule, segments, "node", len(nodes), counted, groups)
    else:
        have = resolver.describe()
        _check_resources_exist(rule, segments, resolver.noun, resolver.hardware_resource_count, have, groups)
    by_process = [tuple(ranks) for segment in segments for ranks in segment.get_resources_by_process()]
    try:
        strategy: PlacementStrategy
        if resolver is None:
            strategy = _place_on_nodes(by_process, rule)
        else:
            strategy = FlexiblePlacementStrategy(by_process, rule.node_group)
        strategy.get_placement(cluster)
    except ConfigError as error:
        raise rule.error(f"{rule.name}: {error}") from None
    resources = tuple(rank for segment in segments for rank in segment.resources)
    return _Component(rule, strategy, len(by_process), resources)


def _check_resources_exist(
    rule: Rule, segments: list[RuleSegment], noun: str, count: int, have: str, groups: Sequence[NodeGroup]
) -> None:
    for segment in segments:
        if segment.resources.stop > count:
            first, last = segment.resources[0], segment.resources[-1]
            asked = f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"
            most = max(each.resources.stop for each in segments)
            raise rule.error(f"{rule.name} asks for {asked}, {have}{rule.hint}{_rehearsal(noun, most, groups)}")


def _rehearsal(noun: str, most: int, groups: Sequence[NodeGroup]) -> str:
    """Return advice on rehearsing a placement that needs more nodes or accelerators; empty for custom groups."""
    if any(group.label not in (CLUSTER_GROUP, NODE_GROUP) for group in groups):
        return ""
    by_node = f"`rlinf-launch --local-nodes {most}` (or Cluster(local_nodes={most})) tries it on this machine"
    per_node = -(-most // max(1, len(groups[0].nodes)))
    declared = f"`rlinf-launch --fake-gpus {per_node}` (or Cluster(fake_gpus={per_node}))"
    if noun == "accelerator":
        return f"; to rehearse it without them, {declared} declares so many on each node"
    if noun != "node":
        return ""
    if groups[0].label == NODE_GROUP:
        return f"; {by_node}"
    return (
        "; no node has an accelerator, so that ranks are nodes: where accelerators are meant, "
        f"{declared} declares them for a rehearsal; where nodes are meant, {by_node}"
    )


def _place_on_nodes(nodes_by_process: list[tuple[int, ...]], rule: Rule) -> NodePlacementStrategy:
    for process, nodes in enumerate(nodes_by_process):
        if len(nodes) > 1:
            raise ConfigError(
                f"process {process} would get nodes {nodes[0]}-{nodes[-1]}; "
                "one process cannot run across multiple nodes"
            )
    return NodePlacementStrategy([nodes[0] for nodes in nodes_by_process], rule.node_group)
