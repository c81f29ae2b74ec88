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
from rlinf_async.placement.ranges import Segment, parse_rule
from rlinf_async.placement.resolver import MultiNodeGroupResolver, describe_groups, find_groups, nodes_of
from rlinf_async.placement.rules import Rule, read_rules, whole
from rlinf_async.placement.strategy import PlacementStrategy


@dataclass(frozen=True)
class _Component:
    rule: Rule
    strategy: PlacementStrategy
    world_size: int
    resources: tuple[int, ...]


class ComponentPlacement:
    """Places each component of a job as its rule in ``cluster.component_placement`` says.

    A rule names hardware, counted through the node groups (the whole cluster, where it names none), or nodes where
    one of the groups has no hardware; and optionally, after a colon, the processes on them::

        cluster:
          component_placement:
            actor,inference: 0-7      # two components, a process on each of eight accelerators
            rollout: 8-15:0-3         # four processes with two accelerators each
            env: 0-3:0-7              # eight processes, two on each of four accelerators
            agent:                    # two hundred processes on each of two nodes
              node_group: node
              placement: 0-1:0-399

    ``all`` is every piece.  Processes are numbered from 0 without gaps; either their number divides that of the
    hardware or the other way round, and without a colon there is one for each piece.  Ranges may follow each other with
    commas, ``0-1:0-3,4:4``.  Components of one entry are placed alike.

    Args:
        config: the path of a YAML file, ``cluster.config`` of a cluster that was given one, or a mapping, an OmegaConf
            ``DictConfig`` or an object with attributes that holds the section ``cluster``.  A rule is a string, an
            integer, a list of these, or a mapping as above, whose ``node_group`` is a label, labels with commas
            between, or a list of labels.
        cluster: anything with ``nodes``, and with ``node_groups`` where there are some.

    Raises:
        ConfigError: a section is missing, a rule is malformed, a component is named twice, or one asks for what
            the cluster does not have.
    """

    def __init__(self, config: Any, cluster: ClusterShape) -> None:
        self._components: dict[str, _Component] = {}
        self._config = whole(config)
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
        """How the components share the accelerators."""
        return PlacementMode.HYBRID

    @property
    def components(self) -> list[str]:
        """The names of the components, in the order of the configuration."""
        return list(self._components)

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """Return the strategy to launch the component with; by RLinf's rules, one object for all of a placement rule.

        Raises:
            ConfigError: there is no such component, as all of these do.
        """
        strategy = self._find_strategy(component_name)
        if dialect.is_rlinf:
            return strategy
        strategy = copy.copy(strategy)
        object.__setattr__(strategy, "component", component_name)  # a frozen one, which its maker may still label
        return strategy

    def get_world_size(self, component_name: str) -> int:
        """The number of the component's processes."""
        return self._get(component_name).world_size

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """The hardware of the component (nodes, where those are counted), counted in its groups, each once."""
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
    """``ComponentPlacement`` as it is: every component where its rule says, together with others or alone."""


def _plan(rule: Rule, cluster: ClusterShape) -> _Component:
    if not cluster.nodes:
        raise rule.error(f"{rule.who} cannot be placed: the cluster has no nodes")
    try:
        groups = find_groups(cluster, rule.node_group)
        # Where one of the groups has no hardware, the ranks of all of them are nodes.
        by_node = any(group.counted_hardware is None for group in groups)
        resolver = None if by_node else MultiNodeGroupResolver(groups)
        nodes = nodes_of(groups) if by_node else []
        segments = parse_rule(rule.text, len(nodes) if resolver is None else resolver.hardware_resource_count)
    except ConfigError as error:
        raise rule.error(f"{rule.who}: {error}") from None
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
        raise rule.error(f"{rule.who}: {error}") from None
    resources = tuple(rank for segment in segments for rank in segment.resources)
    return _Component(rule, strategy, len(by_process), resources)


def _check_resources_exist(
    rule: Rule, segments: list[Segment], noun: str, count: int, have: str, groups: Sequence[NodeGroup]
) -> None:
    for segment in segments:
        if segment.resources.stop > count:
            first, last = segment.resources[0], segment.resources[-1]
            asked = f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"
            most = max(each.resources.stop for each in segments)
            raise rule.error(f"{rule.who} asks for {asked}, {have}{rule.hint}{_rehearsal(noun, most, groups)}")


def _rehearsal(noun: str, most: int, groups: Sequence[NodeGroup]) -> str:
    """Advice on trying a placement that needs ``most`` nodes or accelerators where there are fewer; none for robots."""
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
