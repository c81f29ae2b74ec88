"""Base classes of robots, whose configuration is completed from environment variables on their node."""

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
"""Checked annotations, each with the type of its values, and a description for errors."""

_TRUTHS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class RobotConfig(HardwareConfig):
    """Configuration of one robot.

    A field that is missing from the configuration takes its value from an environment variable on the robot's node. The
    variable has the field's name in capitals, and one comma-separated value per robot of that node. Items of a list are
    separated by ``;``, or by commas if the node has one robot. An empty value keeps the default. Node ranks are never
    read from variables.
    """

    IDENTIFIER: ClassVar[str]
    """Name of the mandatory field that differs between a node's robots; empty for a kind without such a field, whose
    robots must all be configured."""

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
        """True if an environment variable on the node may set this field."""
        return self.given.get(field) is None and getattr(self, field) == default and not field.endswith("node_rank")


@dataclass(frozen=True)
class RobotInfo(HardwareInfo):
    """A node's robot, with its complete configuration."""

    config: RobotConfig = dataclass_field(hash=False)


class Robot(Hardware):
    """A kind of robot; a subclass names its configuration class."""

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
    """Return the complete configurations of a node's robots.

    Without configured robots, the node has one robot for each value of the identifier's variable.

    Raises:
        ConfigError: a variable has the wrong number of values or a value of the wrong type, or a robot's identifier is
            missing or repeated.
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
    """Return the type of a field's values (apart from None) and its description; (None, "") for other annotations."""
    written = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    written = written.removeprefix("typing.Optional[").removesuffix("]") if "Optional" in written else written
    return _KINDS.get(written.removesuffix(" | None"), (None, ""))
