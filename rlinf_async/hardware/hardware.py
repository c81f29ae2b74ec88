"""Base classes of hardware kinds: registry and enumeration, pieces on a node, configuration by node group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from rlinf_async._core.failures import text_of
from rlinf_async.errors import ConfigError

ConfigClass = TypeVar("ConfigClass", bound="type[HardwareConfig]")
HardwareClass = TypeVar("HardwareClass", bound="type[Hardware]")


@dataclass(frozen=True)
class HardwareInfo:
    """One piece of hardware.

    Attributes:
        type: kind of hardware, such as ``"Accelerator"`` or ``"Franka"``.
        model: name such as ``"NV_GPU:H200"``.
    """

    type: str
    model: str


@dataclass(frozen=True)
class HardwareResource:
    """All pieces of one kind on a node; a piece's index in ``infos`` is its local rank."""

    type: str
    infos: tuple[HardwareInfo, ...] = ()

    @property
    def count(self) -> int:
        return len(self.infos)


@dataclass(frozen=True)
class HardwareConfig:
    """Configuration of one piece of hardware; each kind has a subclass whose fields are the kind's YAML keys."""

    node_rank: int

    given: ClassVar[Mapping[str, Any]] = {}
    """The fields that the configuration sets, as written there."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(getattr(self, each.name), list):  # YAML yields lists, but the config must be hashable
                object.__setattr__(self, each.name, tuple(getattr(self, each.name)))
        if not isinstance(self.node_rank, int) or isinstance(self.node_rank, bool) or self.node_rank < 0:
            raise ConfigError(f"hardware: node_rank must be the rank of a node, got {self.node_rank!r}")

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as written in the configuration; without one, those that differ from their defaults."""
        own = {each.name: each for each in fields(self)}
        return dict(self.given) or {name: each for name, each in asdict(self).items() if each != own[name].default}


ConfigRegistry = dict[str, type[HardwareConfig]]


@dataclass(frozen=True)
class NodeHardwareConfig:
    """A node group's ``hardware`` section: pieces of one kind, each with its node."""

    type: str
    configs: tuple[HardwareConfig, ...] = field(default=())

    config_registry: ClassVar[ConfigRegistry] = {}
    """Maps each kind to its configuration class."""

    @classmethod
    def register_hardware_config(cls, type: str) -> Callable[[ConfigClass], ConfigClass]:
        """Class decorator that registers a kind's configuration class."""

        def register(config_class: ConfigClass) -> ConfigClass:
            _check_registered(type, config_class, HardwareConfig)
            cls.config_registry[type] = config_class
            return config_class

        return register

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> NodeHardwareConfig:
        """Read ``{"type": …, "configs": [{"node_rank": …, …}, …]}``.

        Raises:
            ConfigError: a key is unknown or missing, or the kind is not registered.
        """
        _check_fields("hardware", section, ("type", "configs"), ("type", "configs"))
        hw_type = str(section["type"])
        config_class = cls.config_registry.get(hw_type)
        if config_class is None:
            known = ", ".join(sorted(cls.config_registry)) or "none"
            raise ConfigError(
                f"Unsupported hardware type {hw_type!r}{_hint(hw_type, cls.config_registry)}; known are: {known}. "
                "Hardware of your own is registered by the module that RLINF_EXT_MODULE names"
            )
        own = {each.name: each for each in fields(config_class)}
        needed = [name for name, each in own.items() if each.default is MISSING and each.default_factory is MISSING]
        configs = []
        entries = section["configs"] or ()
        if isinstance(entries, str) or not isinstance(entries, Sequence):
            raise ConfigError(f"configs of {hw_type} must be a list with a mapping for each piece, got {entries!r}")
        for entry in entries:
            if not isinstance(entry, Mapping):
                raise ConfigError(f"Each hardware config must be a dictionary, got {entry!r} for {hw_type}")
            _check_fields(f"hardware config of {hw_type}", entry, own, needed)
            try:
                config = config_class(**{str(name): value for name, value in entry.items()})
            except ConfigError:
                raise
            except Exception as error:  # of a user's own class
                raise ConfigError(
                    f"hardware config {dict(entry)} of {hw_type}: {type(error).__name__}: {text_of(error)}"
                ) from error
            object.__setattr__(config, "given", dict(entry))
            configs.append(config)
        for number, config in enumerate(configs):
            if config in configs[:number]:
                raise ConfigError(f"Duplicate hardware configs of {hw_type}: {config}")
        return cls(hw_type, tuple(configs))


class Hardware(ABC):
    """A kind of hardware; a subclass detects the pieces of its kind on a node.

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

    A kind described in the cluster's configuration also registers a ``HardwareConfig`` with
    ``NodeHardwareConfig.register_hardware_config``. The module named by ``RLINF_EXT_MODULE`` does both in its function
    ``register()``, which every node imports and calls.
    """

    HW_TYPE: ClassVar[str]
    DEFAULT_HW_TYPE: ClassVar[str | None] = None
    """The kind that placement ranks refer to in a node group without ``hardware_type``: accelerators."""
    policy_registry: ClassVar[dict[str, type[Hardware]]] = {}

    @classmethod
    def register(cls, is_default_hw: bool = False) -> Callable[[HardwareClass], HardwareClass]:
        """Class decorator that registers a kind, so that every node tries to detect it."""

        def decorate(hardware: HardwareClass) -> HardwareClass:
            _check_registered(getattr(hardware, "HW_TYPE", None), hardware, Hardware)
            Hardware.policy_registry[hardware.HW_TYPE] = hardware
            if is_default_hw:
                Hardware.DEFAULT_HW_TYPE = hardware.HW_TYPE
            return hardware

        return decorate

    @classmethod
    @abstractmethod
    def enumerate(cls, node_rank: int, configs: Sequence[HardwareConfig] | None = None) -> HardwareResource | None:
        """Return the pieces of this kind on this node; None if there are none.

        Args:
            node_rank: rank of this node.
            configs: all pieces of this kind in the cluster's configuration, including those on other nodes.
        """


def _check_registered(kind: Any, given: Any, base: type) -> None:
    if not isinstance(kind, str) or not kind:
        raise TypeError(f"a kind of hardware is named by a text, such as HW_TYPE = 'Arm', got {kind!r} for {given!r}")
    if not isinstance(given, type) or not issubclass(given, base):
        raise TypeError(f"hardware {kind!r}: derive the class from {base.__name__}, got {given!r}")


def _check_fields(kind: str, given: Mapping[str, Any], known: Any, needed: Sequence[str]) -> None:
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        hints = "".join(_hint(name, known) for name in unknown)
        raise ConfigError(f"Unknown fields {set(unknown)} detected in {kind}{hints}; it has: {', '.join(known)}")
    missing = [name for name in needed if name not in given]
    if missing:
        raise ConfigError(f"Missing fields {missing} detected in {kind}")


def _hint(name: str, known: Any) -> str:
    close = get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
