"""The parallel sizes of components: tp, pp and cp from a job's configuration, and dp; RLinf's size properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class ParallelSizes:
    """A component's number of accelerators, and the sizes of its parallel dimensions.

    Attributes:
        world_size: number of accelerators.
        tp, pp, cp: tensor-, pipeline- and context-parallel sizes of one replica.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def replica(self) -> int:
        """Number of accelerators per replica."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Number of replicas."""
        return self.world_size // self.replica


def trainer_sizes(config: Any, component: str, world_size: int, placed_as: str) -> ParallelSizes:
    """Read a trained or scored model's sizes from ``<component>.model``; a missing size is 1.

    Args:
        component: the model's section.
        world_size: number of accelerators.
        placed_as: component that runs the model, for errors.

    Raises:
        ConfigError: a size is not a positive integer, or the accelerators do not divide into replicas.
    """
    keys = [f"{component}.model.{kind}_model_parallel_size" for kind in ("tensor", "pipeline")]
    tp, pp = (_read_size(config, key) for key in keys)
    cp = _read_size(config, f"{component}.model.context_parallel_size")
    return _checked(placed_as, ParallelSizes(world_size, tp, pp, cp))


def engine_sizes(config: Any, component: str, world_size: int) -> ParallelSizes:
    """Read a generation engine's sizes from ``<component>``; a missing size is 1. Raises ConfigError."""
    tp, pp = (_read_size(config, f"{component}.{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    return _checked(component, ParallelSizes(world_size, tp, pp))


def lookup(config: Any, path: str) -> Any:
    """Return the value at a path ``a.b.c`` through mappings or objects with attributes; None if a step is missing.

    Raises:
        ConfigError: an interpolation on the path cannot be resolved.
    """
    for name in path.split("."):
        if config is None:
            return None
        try:
            config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        except Exception as error:  # of OmegaConf
            raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
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


def _size(component: str, size: str) -> Any:
    return property(lambda placement: getattr(placement.get_sizes(component), size))


class SizesByName:
    """Components' sizes as properties with RLinf's names; they raise ConfigError if the component is not placed."""

    actor_dp_size: int = _size("actor", "dp")
    actor_tp_size: int = _size("actor", "tp")
    actor_pp_size: int = _size("actor", "pp")
    actor_world_size: int = _size("actor", "world_size")
    critic_dp_size: int = _size("critic", "dp")
    critic_tp_size: int = _size("critic", "tp")
    critic_pp_size: int = _size("critic", "pp")
    critic_world_size: int = _size("critic", "world_size")
    inference_dp_size: int = _size("inference", "dp")
    inference_tp_size: int = _size("inference", "tp")
    inference_pp_size: int = _size("inference", "pp")
    inference_world_size: int = _size("inference", "world_size")
    critic_inference_dp_size: int = _size("critic_inference", "dp")
    critic_inference_tp_size: int = _size("critic_inference", "tp")
    critic_inference_pp_size: int = _size("critic_inference", "pp")
    critic_inference_world_size: int = _size("critic_inference", "world_size")
    rollout_dp_size: int = _size("rollout", "dp")
    rollout_tp_size: int = _size("rollout", "tp")
    rollout_pp_size: int = _size("rollout", "pp")
    rollout_world_size: int = _size("rollout", "world_size")

    def get_sizes(self, component_name: str) -> ParallelSizes:
        raise NotImplementedError
