"""Component placement for model-parallel training: actor, rollout, inference on shared or separate accelerators."""

from __future__ import annotations

from typing import Any

from rlinf_async.configuration import ACCELERATOR, ClusterConfig, format_ranks
from rlinf_async.errors import ConfigError
from rlinf_async.placement.component import ComponentPlacement
from rlinf_async.placement.modes import PlacementMode, RolloutSyncMode, placement_mode_to_rollout_sync_mode
from rlinf_async.placement.numbering import AcceleratorNumbering, ClusterShape
from rlinf_async.placement.packed import PackedPlacementStrategy
from rlinf_async.placement.sizes import ParallelSizes, SizesByName, engine_sizes, lookup, trainer_sizes
from rlinf_async.placement.strategy import PlacementStrategy

_TRAINERS = ("actor", "inference", "critic", "critic_inference")
_POSITIONED = (*_TRAINERS, "rollout")
_SYNONYMS = {"actor_inference": "inference"}
_SCORES = {"inference": "actor", "critic_inference": "critic"}
"""Maps each scoring component to the component whose model it uses."""


class ModelParallelComponentPlacement(ComponentPlacement, SizesByName):
    """Places actor, rollout, reward and a job's other components so that model-parallel groups are contiguous.

    The components actor, inference, critic and critic_inference have one process per accelerator. A rollout process is
    one engine and has all accelerators of one replica. The components' rules determine the mode:

    * COLLOCATED: actor and rollout share the same accelerators. If the actor has more tensor-parallel ranks than the
      rollout, an engine takes every ``actor_tp / rollout_tp``-th accelerator, so that its shards of the weights are on
      the same accelerators as the actor's.
    * DISAGGREGATED: actor, rollout and inference have separate accelerators.
    * AUTO, with ``cluster.auto_scheduler``: initially separate accelerators, in the order actor, rollout, inference,
      and without gaps; later, a scheduler moves the components. The actor has a process on every accelerator. With
      ``cluster.use_pre_process_policy``, the rollout also has engines on the actor's accelerators.

    Other components, such as reward and agents, are placed by their rules.

    Args:
        config: configuration with ``cluster.component_placement`` and the parallel sizes in ``actor.model``,
            ``rollout``, ``inference.model`` and ``critic.model``. A missing size is 1; for inference, it is the actor's
            size.
        cluster: object with ``nodes``.

    Raises:
        ConfigError: as for ``ComponentPlacement``; or a component is missing, its accelerators have gaps or do not
            divide evenly, or the rules match no mode.
    """

    _NEEDED: tuple[str, ...] = ("actor", "rollout", "reward")

    def __init__(self, config: Any, cluster: ClusterShape) -> None:
        if isinstance(config, ClusterConfig):
            raise ConfigError(
                "model-parallel placement reads the sizes in 'actor' and 'rollout' too: give the whole configuration, "
                "or the path of its file, not its section 'cluster' alone"
            )
        super().__init__(config, cluster)
        for synonym, name in _SYNONYMS.items():
            if synonym in self._components:
                if name in self._components:
                    raise ConfigError(f"component_placement has both {synonym!r} and {name!r}, which are the same")
                self._components[name] = self._components[synonym]
        missing = [name for name in self._NEEDED if name not in self._components]
        if missing:
            raise ConfigError(
                f"model-parallel placement needs {', '.join(map(repr, self._NEEDED))} in component_placement; "
                f"{', '.join(map(repr, missing))} is missing"
            )
        self._cluster_num_gpus = AcceleratorNumbering(cluster).num_accelerators
        self._accelerators = {
            name: self._find_accelerators(name, cluster) for name in _POSITIONED if name in self._components
        }
        self._placement_mode = self._find_mode()
        self._sizes = {name: self._find_sizes(name) for name in self._accelerators}
        self._strategies = {name: self._pack(name) for name in self._accelerators}
        for strategy in self._strategies.values():
            strategy.get_placement(cluster)

    # -- queries ------------------------------------------------------------------------------------------------

    @property
    def placement_mode(self) -> PlacementMode:
        return self._placement_mode

    def _find_strategy(self, component_name: str) -> PlacementStrategy:
        known = self._strategies.get(_SYNONYMS.get(component_name, component_name))
        return super()._find_strategy(component_name) if known is None else known

    def get_world_size(self, component_name: str) -> int:
        known = self._strategies.get(_SYNONYMS.get(component_name, component_name))
        return super().get_world_size(component_name) if known is None else known.num_processes

    @property
    def is_collocated(self) -> bool:
        return self._placement_mode is PlacementMode.COLLOCATED

    @property
    def is_disaggregated(self) -> bool:
        return self._placement_mode is PlacementMode.DISAGGREGATED

    @property
    def is_auto(self) -> bool:
        return self._placement_mode is PlacementMode.AUTO

    @property
    def is_pipeline(self) -> bool:
        """True if the components run at the same time, on separate accelerators."""
        return self.is_disaggregated or self.is_auto

    @property
    def has_dedicated_inference(self) -> bool:
        """True if separate accelerators recompute the actor's log probabilities."""
        return "inference" in self._accelerators

    def has_dedicated_inference_for_role(self, role: str) -> bool:
        """True if the role, ``"actor"`` or ``"critic"``, has separate accelerators for inference.

        Raises:
            ConfigError: there is no such role.
        """
        if role not in ("actor", "critic"):
            raise ConfigError(f"a role is 'actor' or 'critic', got {role!r}")
        return ("inference" if role == "actor" else "critic_inference") in self._accelerators

    @property
    def _rollout_sync_mode(self) -> RolloutSyncMode:
        return placement_mode_to_rollout_sync_mode(self._placement_mode)

    # -- sizes --------------------------------------------------------------------------------------------------

    def get_sizes(self, component_name: str) -> ParallelSizes:
        """Return the parallel sizes of a model-parallel component.

        Raises:
            ConfigError: the component has no parallel sizes, or is not placed.
        """
        name = _SYNONYMS.get(component_name, component_name)
        if name not in self._sizes:
            raise ConfigError(
                f"component {component_name!r} has no parallel sizes here; {', '.join(map(repr, self._sizes))} have"
            )
        return self._sizes[name]

    def _find_sizes(self, name: str) -> ParallelSizes:
        world_size = len(self._accelerators[name])
        if name == "rollout":
            return engine_sizes(self._config, name, world_size)
        owner = name
        if name in _SCORES and lookup(self._config, f"{name}.model.tensor_model_parallel_size") is None:
            owner = _SCORES[name]
        return trainer_sizes(self._config, owner, world_size, placed_as=name)

    # -- modes --------------------------------------------------------------------------------------------------

    def _find_accelerators(self, name: str, cluster: ClusterShape) -> list[int]:
        component = self._components[name]
        ranks = component.resources
        placements = component.strategy.get_placement(cluster)
        if not all(placement.hardware_type == ACCELERATOR for placement in placements):
            raise ConfigError(f"{component.rule.name} needs accelerators: model-parallel placement is on nothing else")
        if list(ranks) != list(range(ranks[0], ranks[-1] + 1)):
            raise component.rule.error(
                f"{component.rule.name} has accelerators {format_ranks(ranks)}; with model-parallel placement they "
                "must be contiguous"
            )
        return list(dict.fromkeys(each for placement in placements for each in placement.global_accelerator_ids))

    def _find_mode(self) -> PlacementMode:
        actor, rollout = self._accelerators["actor"], self._accelerators["rollout"]
        inference = self._accelerators.get("inference")
        if inference is not None and not lookup(self._config, "algorithm.recompute_logprobs"):
            raise ConfigError(
                "component 'inference' computes log probabilities again, which algorithm.recompute_logprobs does not "
                "ask for: set it to true, or leave the component out"
            )
        if lookup(self._config, "cluster.auto_scheduler"):
            self._check_auto()
            return PlacementMode.AUTO
        if set(actor) == set(rollout):
            if inference is not None:
                raise ConfigError(
                    "component 'inference' cannot be placed beside an actor and a rollout that share their "
                    "accelerators (COLLOCATED): the actor computes its log probabilities itself; leave it out"
                )
            return PlacementMode.COLLOCATED
        self._check_apart("actor", "rollout")
        if inference is not None:
            self._check_apart("actor", "inference")
            self._check_apart("rollout", "inference")
        return PlacementMode.DISAGGREGATED

    def _check_apart(self, one: str, other: str) -> None:
        both = sorted(set(self._accelerators[one]) & set(self._accelerators[other]))
        if both:
            raise ConfigError(
                f"components {one!r} (accelerators {format_ranks(sorted(self._accelerators[one]))}) and {other!r} "
                f"({format_ranks(sorted(self._accelerators[other]))}) share accelerators {format_ranks(both)}: actor "
                "and rollout must be on the same ones, or every component on its own"
            )

    def _check_auto(self) -> None:
        unfit = [name for name in ("critic", "critic_inference") if name in self._accelerators]
        if unfit:
            raise ConfigError(
                f"cluster.auto_scheduler does not know component {unfit[0]!r}: turn it off, or leave it out"
            )
        order = [name for name in ("actor", "rollout", "inference") if name in self._accelerators]
        ranks = [rank for name in order for rank in self._accelerators[name]]
        if ranks != list(range(self._cluster_num_gpus)):
            placed = ", ".join(f"{name} {format_ranks(sorted(self._accelerators[name]))}" for name in order)
            raise ConfigError(
                f"with cluster.auto_scheduler the components must follow each other in the order {', '.join(order)} "
                f"and cover the {self._cluster_num_gpus} accelerators of the cluster; they have: {placed}"
            )

    # -- strategies ---------------------------------------------------------------------------------------------

    def _pack(self, name: str) -> PackedPlacementStrategy:
        self._check_rule_is_followed(name)
        rule, ranks = self._components[name].rule, self._components[name].resources
        node_group = rule.node_group
        first, last = ranks[0], ranks[-1]
        if self.is_auto:  # its ranks are counted in the whole cluster, within which the scheduler moves it
            first, last, node_group = self._accelerators[name][0], self._accelerators[name][-1], None
            if name == "actor":
                first, last = 0, self._cluster_num_gpus - 1
            elif name == "rollout" and lookup(self._config, "cluster.use_pre_process_policy"):
                first = 0
        if name != "rollout":
            return PackedPlacementStrategy(first, last, node_group=node_group)
        replica, stride = self._sizes[name].replica, self._find_stride()
        try:
            return PackedPlacementStrategy(first, last, replica, stride, node_group)
        except ConfigError as error:
            raise rule.error(f"{rule.name}: {error}") from None

    def _find_stride(self) -> int:
        """Return the distance between an engine's accelerators."""
        if not self.is_collocated or "actor" not in self._sizes:
            return 1
        actor, rollout = self._sizes["actor"].tp, self._sizes["rollout"].tp
        if actor <= rollout:
            return 1
        if actor % rollout:
            raise ConfigError(
                f"actor.model.tensor_model_parallel_size ({actor}) must be divisible by "
                f"rollout.tensor_parallel_size ({rollout}) where both are on the same accelerators"
            )
        return actor // rollout

    def _check_rule_is_followed(self, name: str) -> None:
        component, sizes = self._components[name], self._sizes[name]
        fitting = {sizes.world_size, sizes.dp} if name == "rollout" else {sizes.world_size}
        if component.world_size not in fitting:
            meant = f"{sizes.dp} (one per engine)" if name == "rollout" else f"{sizes.world_size} (one per accelerator)"
            raise component.rule.error(
                f"{component.rule.name} asks for {component.world_size} processes, but with model-parallel placement "
                f"'{name}' has {meant}: leave the process ranks after the ':' out"
            )


class ModelParallelEvalComponentPlacement(ModelParallelComponentPlacement):
    """``ModelParallelComponentPlacement`` for a job that only evaluates: with rollout and reward, but no actor."""

    _NEEDED = ("rollout", "reward")

    def _find_mode(self) -> PlacementMode:
        return PlacementMode.COLLOCATED


MultiAgentModelParallelComponentPlacement = ModelParallelComponentPlacement
"""RLinf's name for the same class; agents are placed by their rules."""
MultiAgentModelParallelEvalComponentPlacement = ModelParallelEvalComponentPlacement
"""RLinf's name for the same class; agents are placed by their rules."""
