"""Base classes of hardware kinds: registry and enumeration, pieces on a node, configuration by node group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from rlinf_async.errors import ConfigError

ConfigClass = TypeVar("ConfigClass", bound="type[HardwareConfig]")
HardwareClass = TypeVar("HardwareClass", bound="type[Hardware]")


@dataclass(frozen=True)
class HardwareInfo:
    """One piece of hardware.

    Attributes:
        type: its kind, for example ``"Accelerator"`` or ``"Franka"``.
        model: for example ``"NV_GPU:H200"``.
    """

    type: str
    model: str


@dataclass(frozen=True)
class HardwareResource:
    """All pieces of one kind that a node has; their places in ``infos`` are their local ranks."""

    type: str
    infos: tuple[HardwareInfo, ...] = ()

    @property
    def count(self) -> int:
        return len(self.infos)


@dataclass(frozen=True)
class HardwareConfig:
    """The configuration of one piece; the fields of a kind's own subclass are its keys in the YAML."""

    node_rank: int

    given: ClassVar[frozenset[str]] = frozenset()
    """The fields that a configuration names, of one that was read; the others have their defaults."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(getattr(self, each.name), list):  # as YAML has it
                object.__setattr__(self, each.name, tuple(getattr(self, each.name)))
        if not isinstance(self.node_rank, int) or isinstance(self.node_rank, bool) or self.node_rank < 0:
            raise ConfigError(f"hardware: node_rank must be the rank of a node, got {self.node_rank!r}")

    def to_mapping(self) -> dict[str, Any]:
        """What a configuration says of it: with the fields that are given, or are not as by default."""
        values = asdict(self)
        own = {each.name: each for each in fields(self)}
        return {name: value for name, value in values.items() if name in self.given or value != own[name].default}


ConfigRegistry = dict[str, type[HardwareConfig]]


@dataclass(frozen=True)
class NodeHardwareConfig:
    """The ``hardware`` section of a node group: pieces of one kind, each on its node."""

    type: str
    configs: tuple[HardwareConfig, ...] = field(default=())

    config_registry: ClassVar[ConfigRegistry] = {}
    """Kind → the class of its configurations."""

    @classmethod
    def register_hardware_config(cls, type: str) -> Callable[[ConfigClass], ConfigClass]:
        """Decorates the subclass of ``HardwareConfig`` that reads the configurations of a kind."""

        def register(config_class: ConfigClass) -> ConfigClass:
            cls.config_registry[type] = config_class
            return config_class

        return register

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> NodeHardwareConfig:
        """Reads ``{"type": …, "configs": [{"node_rank": …, …}, …]}``.

        Raises:
            ConfigError: a key is unknown or missing, or nobody has registered the kind.
        """
        _check_fields("hardware", section, ("type", "configs"), ("type", "configs"))
        hw_type = str(section["type"])
        config_class = cls.config_registry.get(hw_type)
        if config_class is None:
            known = ", ".join(sorted(cls.config_registry)) or "none"
            raise ConfigError(
                f"Unsupported hardware type {hw_type!r}{_meant(hw_type, cls.config_registry)}; known are: {known}. "
                "Hardware of your own is registered by the module that RLINF_EXT_MODULE names"
            )
        own = {each.name: each for each in fields(config_class)}
        needed = [name for name, each in own.items() if each.default is MISSING and each.default_factory is MISSING]
        configs = []
        for entry in section["configs"] or ():
            if not isinstance(entry, Mapping):
                raise ConfigError(f"Each hardware config must be a dictionary, got {entry!r} for {hw_type}")
            _check_fields(f"hardware config of {hw_type}", entry, own, needed)
            config = config_class(**{str(name): value for name, value in entry.items()})
            object.__setattr__(config, "given", frozenset(name for name in entry if entry[name] is not None))
            configs.append(config)
        for number, config in enumerate(configs):
            if config in configs[:number]:
                raise ConfigError(f"Duplicate hardware configs of {hw_type}: {config}")
        return cls(hw_type, tuple(configs))


class Hardware(ABC):
    """A kind of hardware; a subclass knows how to find what a node has of it.

    Example:
        @dataclass(frozen=True)
        class ArmInfo(HardwareInfo):
            port: str

        @Hardware.register()
        class Arm(Hardware):
            HW_TYPE = "Arm"

            @classmethod
            def enumerate(cls, node_rank, configs=None):
                ports = sorted(Path("/dev").glob("ttyARM*"))
                return HardwareResource("Arm", tuple(ArmInfo("Arm", "v2", str(port)) for port in ports))

    A kind that is described in the cluster's configuration registers a ``HardwareConfig`` too, with
    ``NodeHardwareConfig.register_hardware_config``.  ``RLINF_EXT_MODULE`` names a module that does
    both in its function ``register()``; it is imported, and that is called, on every node.
    """

    HW_TYPE: ClassVar[str]
    DEFAULT_HW_TYPE: ClassVar[str | None] = None
    """The kind that ranks of a placement count where a node group says nothing: accelerators."""
    policy_registry: ClassVar[dict[str, type[Hardware]]] = {}

    @classmethod
    def register(cls, is_default_hw: bool = False) -> Callable[[HardwareClass], HardwareClass]:
        """Decorates a kind, which is then looked for on every node."""

        def decorate(hardware: HardwareClass) -> HardwareClass:
            Hardware.policy_registry[hardware.HW_TYPE] = hardware
            if is_default_hw:
                Hardware.DEFAULT_HW_TYPE = hardware.HW_TYPE
            return hardware

        return decorate

    @classmethod
    @abstractmethod
    def enumerate(cls, node_rank: int, configs: Sequence[HardwareConfig] | None = None) -> HardwareResource | None:
        """What the node that this runs on has; None where it has nothing of the kind.

        Args:
            node_rank: of this node.
            configs: what the cluster's configuration says of this kind, other nodes' pieces included.
        """


def _check_fields(what: str, given: Mapping[str, Any], known: Any, needed: Sequence[str]) -> None:
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        hints = "".join(_meant(name, known) for name in unknown)
        raise ConfigError(f"Unknown fields {set(unknown)} detected in {what}{hints}; it has: {', '.join(known)}")
    missing = [name for name in needed if name not in given]
    if missing:
        raise ConfigError(f"Missing fields {missing} detected in {what}")


def _meant(name: str, known: Any) -> str:
    close = get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
