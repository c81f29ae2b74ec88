"""Robots as hardware: each is described in the cluster's configuration, gaps filled from its node's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_type_hints

from rlinf_async.errors import ConfigError

from .hardware import Hardware, HardwareConfig, HardwareInfo, HardwareResource


@dataclass(frozen=True)
class RobotConfig(HardwareConfig):
    """One robot.  What is None here is taken from the variable of the same name, in capitals, on the robot's node:
    one value per robot there, with commas between; the items of a list have ``;`` between.
    """

    IDENTIFIER: ClassVar[str]
    """The field without which there is no robot."""


@dataclass(frozen=True)
class RobotInfo(HardwareInfo):
    """A robot that a node has, and its complete configuration."""

    config: RobotConfig


class Robot(Hardware):
    """A kind of robot; a subclass names its configuration."""

    CONFIG: ClassVar[type[RobotConfig]]

    @classmethod
    def enumerate(cls, node_rank: int, configs: Sequence[HardwareConfig] | None = None) -> HardwareResource | None:
        own = [config for config in configs or () if isinstance(config, cls.CONFIG) and config.node_rank == node_rank]
        robots = resolve(cls.CONFIG, node_rank, own, os.environ)
        infos = tuple(RobotInfo(cls.HW_TYPE, cls.HW_TYPE, robot) for robot in robots)
        return HardwareResource(cls.HW_TYPE, infos) if infos else None


def resolve(
    kind: type[RobotConfig], node_rank: int, configs: Sequence[RobotConfig], environ: Mapping[str, str]
) -> list[RobotConfig]:
    """The robots of a node, complete: those that are configured, or else as many as the identifier's variable names.

    Raises:
        ConfigError: a variable has another number of values than there are robots, or a value of another type; a
            robot has no identifier.
    """
    identifier = kind.IDENTIFIER.upper()
    if not configs:
        named = [entry for entry in environ.get(identifier, "").split(",") if entry.strip()]
        configs = [kind(node_rank) for _ in named]
    types = get_type_hints(kind)
    changes: list[dict[str, Any]] = [{} for _ in configs]
    for field in fields(kind):
        lacking = [number for number, config in enumerate(configs) if getattr(config, field.name) is None]
        variable = environ.get(field.name.upper())
        if not lacking or not variable:
            continue
        values = [value.strip() for value in variable.split(",")]
        if len(values) != len(configs):
            raise ConfigError(
                f"{field.name.upper()}={variable} has {len(values)} values, but node {node_rank} has {len(configs)} "
                f"robots ({kind.__name__}): give one per robot, with commas between"
            )
        for number in lacking:
            changes[number][field.name] = _convert(field.name, values[number], types[field.name])
    robots = [replace(config, **change) for config, change in zip(configs, changes, strict=True)]
    for robot in robots:
        if getattr(robot, kind.IDENTIFIER) is None:
            raise ConfigError(
                f"a robot ({kind.__name__}) of node {node_rank} has no {kind.IDENTIFIER}: "
                f"write it into its hardware config, or set {identifier} on that node"
            )
    return robots


def _convert(name: str, text: str, annotation: Any) -> Any:
    if "tuple" in str(annotation):
        return tuple(item.strip() for item in text.split(";") if item.strip())
    if "int" not in str(annotation):
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name.upper()}: {text!r} is not a number") from None
