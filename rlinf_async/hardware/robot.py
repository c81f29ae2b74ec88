"""Base classes of robots: each configured in the cluster's configuration, gaps filled from its node's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field as dataclass_field, fields, replace
from typing import Any, ClassVar, Final, get_args, get_type_hints

from rlinf_async.errors import ConfigError
from rlinf_async.hardware.hardware import Hardware, HardwareConfig, HardwareInfo, HardwareResource

_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "list[str]": (list, "a list of texts"),
    "bool": (bool, "true or false"),
    "int": (int, "a number"),
    "str": (str, "text"),
}
"""Annotations whose values are checked, and converted from text: their type, and its name for people."""

_TRUTHS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class RobotConfig(HardwareConfig):
    """One robot.

    A field that its configuration leaves out is taken from the variable of the same name, in capitals, on the robot's
    node: one value per robot there, with commas between.  The items of a list have ``;`` between, or commas where the
    node has one robot.  An empty value leaves the default.  Ranks of nodes never come from there.
    """

    IDENTIFIER: ClassVar[str]
    """The field without which there is no robot, and in which no two robots of a node agree; empty for a kind that
    has none, whose robots are those of the configuration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        types = get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            kind, name = _kind(types[field.name])
            if kind is list and isinstance(value, tuple):
                value = list(value)
                object.__setattr__(self, field.name, value)
            if kind is None or value is None or field.name == "node_rank":
                continue
            items = value if isinstance(value, list) else ()
            if type(value) is not kind or not all(isinstance(item, str) for item in items):
                quotes = "" if isinstance(value, str) else ", and text is written in quotes"
                raise ConfigError(f"{field.name} must be {name}, got {value!r}{quotes}")

    def lacks(self, field: str, default: Any) -> bool:
        """Whether its node's environment may say what a field is."""
        return field not in self.given and getattr(self, field) == default and not field.endswith("node_rank")


@dataclass(frozen=True)
class RobotInfo(HardwareInfo):
    """A robot that a node has, and its complete configuration."""

    config: RobotConfig = dataclass_field(hash=False)


class Robot(Hardware):
    """A kind of robot; a subclass names its configuration."""

    CONFIG: ClassVar[type[RobotConfig]]
    INFO: ClassVar[type[RobotInfo]] = RobotInfo

    @classmethod
    def enumerate(cls, node_rank: int, configs: Sequence[HardwareConfig] | None = None) -> HardwareResource | None:
        own = [config for config in configs or () if isinstance(config, cls.CONFIG) and config.node_rank == node_rank]
        robots = resolve(cls.CONFIG, node_rank, own, os.environ)
        infos = tuple(cls.INFO(cls.HW_TYPE, cls.HW_TYPE, robot) for robot in robots)
        return HardwareResource(cls.HW_TYPE, infos) if infos else None


def resolve(
    kind: type[RobotConfig], node_rank: int, configs: Sequence[RobotConfig], environ: Mapping[str, str]
) -> list[RobotConfig]:
    """The robots of a node, complete: those that are configured, or else as many as the identifier's variable names.

    Raises:
        ConfigError: a variable has another number of values than there are robots, or a value of another type; a
            robot has no identifier, or that of another one.
    """
    identifier = kind.IDENTIFIER.upper()
    if not configs:
        named = [entry for entry in environ.get(identifier, "").split(",") if entry.strip()] if identifier else []
        configs = [kind(node_rank) for _ in named]
    types = get_type_hints(kind)
    changes: list[dict[str, Any]] = [{} for _ in configs]
    for field in fields(kind):
        lacking = [number for number, config in enumerate(configs) if config.lacks(field.name, field.default)]
        variable = environ.get(field.name.upper())
        if not lacking or not variable:
            continue
        takes_all = len(configs) == 1 and _kind(types[field.name])[0] is list
        values = [variable] if takes_all else [value.strip() for value in variable.split(",")]
        if len(values) != len(configs):
            raise ConfigError(
                f"{field.name.upper()}={variable} has {len(values)} values, but node {node_rank} has {len(configs)} "
                f"robots ({kind.__name__}): give one per robot, with commas between"
            )
        for number in lacking:
            if values[number]:
                changes[number][field.name] = _convert(field.name, values[number], types[field.name])
    robots = [replace(config, **change) for config, change in zip(configs, changes, strict=True)]
    known: set[Any] = set()
    for robot in robots if identifier else ():
        own = getattr(robot, kind.IDENTIFIER)
        if own in known:
            raise ConfigError(
                f"two robots ({kind.__name__}) of node {node_rank} have the {kind.IDENTIFIER} {own!r}: write one for "
                f"each into its hardware config, or set {identifier} on that node to one per robot, with commas between"
            )
        known.add(own)
        if own is None:
            raise ConfigError(
                f"a robot ({kind.__name__}) of node {node_rank} has no {kind.IDENTIFIER}: "
                f"write it into its hardware config, or set {identifier} on that node"
            )
    return robots


def _convert(name: str, text: str, annotation: Any) -> Any:
    kind, wanted = _kind(annotation)
    if kind is list:
        return [item.strip() for item in text.replace(",", ";").split(";") if item.strip()]
    if kind is None or kind is str:
        return text
    value = _TRUTHS.get(text.lower()) if kind is bool else int(text) if text.isascii() and text.isdecimal() else None
    if value is None:
        raise ConfigError(f"{name.upper()}: {text!r} is not {wanted}")
    return value


def _kind(annotation: Any) -> tuple[type | None, str]:
    """The type that a field's values have beside None, and its name for people; None for one that is not known."""
    written = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    written = written.removeprefix("typing.Optional[").removesuffix("]") if "Optional" in written else written
    return _KINDS.get(written.removesuffix(" | None"), (None, ""))
