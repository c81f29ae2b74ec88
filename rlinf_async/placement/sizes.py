"""Data, tensor and pipeline parallel sizes of a component's accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class ParallelSizes:
    """Parts of one component.

    Attributes:
        world_size: accelerators.
        tp, pp, cp: tensor, pipeline and context parallel parts of one replica.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def replica(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.world_size // self.replica


def trainer_sizes(config: Any, component: str, world_size: int, placed_as: str) -> ParallelSizes:
    """The sizes of a model that is trained or scored, as ``<component>.model`` says; 1 where it says nothing.

    Args:
        component: whose model it is.
        world_size: number of accelerators.
        placed_as: the component that has them.

    Raises:
        ConfigError: a size is no positive number, or the accelerators do not divide.
    """
    keys = [f"{component}.model.{kind}_model_parallel_size" for kind in ("tensor", "pipeline")]
    tp, pp = (_read_size(config, key) for key in keys)
    cp = _read_size(config, f"{component}.model.context_parallel_size")
    return _checked(placed_as, ParallelSizes(world_size, tp, pp, cp))


def engine_sizes(config: Any, component: str, world_size: int) -> ParallelSizes:
    """The sizes of an engine that generates, as ``<component>`` says; 1 where it says nothing.  Raises ConfigError."""
    tp, pp = (_read_size(config, f"{component}.{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    return _checked(component, ParallelSizes(world_size, tp, pp))


def lookup(config: Any, path: str) -> Any:
    """What stands at ``a.b.c`` of mappings or objects with attributes; None where there is nothing."""
    for name in path.split("."):
        if config is None:
            return None
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def _read_size(config: Any, path: str) -> int:
    size = lookup(config, path)
    if size is None:
        return 1
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"{path} must be a positive number, got {size!r}")
    return size


def _checked(component: str, sizes: ParallelSizes) -> ParallelSizes:
    if sizes.world_size % sizes.replica:
        product = " * ".join(
            f"{name} {size}" for name, size in (("tp", sizes.tp), ("pp", sizes.pp), ("cp", sizes.cp)) if size > 1
        )
        raise ConfigError(
            f"component '{component}' has {sizes.world_size} accelerators, which must be divisible by the "
            f"{sizes.replica} of one replica ({product})"
        )
    return sizes


class SizesByName:
    """The sizes of components under RLinf's names; ConfigError where the component is not placed."""

    def get_sizes(self, component_name: str) -> ParallelSizes:
        raise NotImplementedError

    @property
    def actor_dp_size(self) -> int:
        return self.get_sizes("actor").dp

    @property
    def actor_tp_size(self) -> int:
        return self.get_sizes("actor").tp

    @property
    def actor_pp_size(self) -> int:
        return self.get_sizes("actor").pp

    @property
    def actor_world_size(self) -> int:
        return self.get_sizes("actor").world_size

    @property
    def critic_dp_size(self) -> int:
        return self.get_sizes("critic").dp

    @property
    def critic_tp_size(self) -> int:
        return self.get_sizes("critic").tp

    @property
    def critic_pp_size(self) -> int:
        return self.get_sizes("critic").pp

    @property
    def critic_world_size(self) -> int:
        return self.get_sizes("critic").world_size

    @property
    def inference_dp_size(self) -> int:
        return self.get_sizes("inference").dp

    @property
    def inference_tp_size(self) -> int:
        return self.get_sizes("inference").tp

    @property
    def inference_pp_size(self) -> int:
        return self.get_sizes("inference").pp

    @property
    def inference_world_size(self) -> int:
        return self.get_sizes("inference").world_size

    @property
    def critic_inference_dp_size(self) -> int:
        return self.get_sizes("critic_inference").dp

    @property
    def critic_inference_tp_size(self) -> int:
        return self.get_sizes("critic_inference").tp

    @property
    def critic_inference_pp_size(self) -> int:
        return self.get_sizes("critic_inference").pp

    @property
    def critic_inference_world_size(self) -> int:
        return self.get_sizes("critic_inference").world_size

    @property
    def rollout_dp_size(self) -> int:
        return self.get_sizes("rollout").dp

    @property
    def rollout_tp_size(self) -> int:
        return self.get_sizes("rollout").tp

    @property
    def rollout_pp_size(self) -> int:
        return self.get_sizes("rollout").pp

    @property
    def rollout_world_size(self) -> int:
        return self.get_sizes("rollout").world_size
