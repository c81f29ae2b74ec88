"""Parser of ``cluster.net_emulation``: extra delays between workers, and bandwidth limits that workers share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rlinf_async.configuration.document import Origin, Steps, origin_of, plain
from rlinf_async.configuration.ranks import parse_rank_config
from rlinf_async.configuration.section import Section, misplaced
from rlinf_async.errors import ConfigError

_GROUP = "Group"

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class CrossDCPair:
    """Two sets of workers with an extra delay between them, as between two data centres.

    Attributes:
        src, dst: names of workers, such as ``"Env:0"``, or ``"Env"`` for a whole group. The YAML may list several names
            and ranges of ranks (``"Env:0-1"``), which are expanded.
        delay_ms: extra milliseconds added to a message from ``src`` to ``dst``.

    Raises:
        ConfigError: a name or the delay is malformed, or a set is empty.
    """

    src: tuple[str, ...]
    dst: tuple[str, ...]
    delay_ms: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "src", parse_workers(self.src, "src"))
        object.__setattr__(self, "dst", parse_workers(self.dst, "dst"))
        _check_number("delay_ms", self.delay_ms)


@dataclass(frozen=True)
class BandwidthGroup:
    """Workers that share one link of limited bandwidth.

    Attributes:
        members: names of workers, as in ``CrossDCPair``.
        bandwidth_mbps: megabits per second; one megabit is 125,000 bytes.

    Raises:
        ConfigError: a name or the bandwidth is malformed, or there are no members.
    """

    members: tuple[str, ...]
    bandwidth_mbps: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", parse_workers(self.members, "members"))
        _check_number("bandwidth_mbps", self.bandwidth_mbps)
        if not self.bandwidth_mbps:
            raise ConfigError("bandwidth_mbps must be more than 0: nothing would ever arrive")


@dataclass(frozen=True)
class NetEmulationConfig:
    """The ``net_emulation`` section, with ranges of ranks expanded and a trailing ``Group`` removed from names.

    Attributes:
        symmetric: True if a pair's delay applies in both directions.
        crossdc_pairs: pairs of sets of workers that are far from each other.
        bandwidth_groups: sets of workers that share a link.

    Raises:
        ConfigError: a worker belongs to two bandwidth groups.
    """

    symmetric: bool = True
    crossdc_pairs: tuple[CrossDCPair, ...] = ()
    bandwidth_groups: tuple[BandwidthGroup, ...] = ()

    def __post_init__(self) -> None:
        repeated = _find_repeated_member(self.bandwidth_groups)
        if repeated is not None:
            raise ConfigError(repeated[1])

    @classmethod
    def from_cfg(cls, cfg: Any) -> NetEmulationConfig | None:
        """Read the section; return None if it is missing or not enabled.

        Raises:
            ConfigError: a key, a name or a number is invalid, or a list of workers is empty.
        """
        return read_net_emulation(plain(cfg), ("net_emulation",), origin_of(cfg))


def read_net_emulation(value: Any, steps: Steps, origin: Origin | None) -> NetEmulationConfig | None:
    """Read the section; return None if it is missing or not enabled. Raises ConfigError."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise misplaced(steps, origin, f"net_emulation must be a mapping, got {value!r}")
    section = Section(
        value,
        steps,
        origin,
        kind="net_emulation",
        known=("enabled", "symmetric", "crossdc_pairs", "bandwidth_groups"),
    )
    pairs = [_read_pair(section, number, entry) for number, entry in enumerate(section.entries("crossdc_pairs"))]
    lines = [_read_line(section, number, entry) for number, entry in enumerate(section.entries("bandwidth_groups"))]
    symmetric = section.flag("symmetric", True)
    if not section.flag("enabled"):
        return None
    repeated = _find_repeated_member(lines)
    if repeated is not None:
        raise section.error(repeated[1], "bandwidth_groups", repeated[0], "members")
    return NetEmulationConfig(symmetric, tuple(pairs), tuple(lines))


def worker_key(name: str) -> str:
    """Return a worker's name in the form used by the emulation: ``"EnvGroup:0"`` becomes ``"Env:0"``."""
    group, colon, rank = name.partition(":")
    return (group.removesuffix(_GROUP) or group) + colon + rank


def parse_workers(value: Any, key: str) -> tuple[str, ...]:
    """Expand the workers in a configuration value, without duplicates; ``key`` names the value in errors.

    Example:
        >>> parse_workers(["EnvGroup:0-1", "Actor"], "src")
        ('Env:0', 'Env:1', 'Actor')

    Raises:
        ConfigError: the value is not a list of workers, or is empty.
    """
    entries = [value] if isinstance(value, str) else value
    if isinstance(entries, bytes) or not isinstance(entries, Sequence):
        raise ConfigError(f"{key} must be a list, got {value!r}")
    if not entries:
        raise ConfigError(f"{key} must not be empty: name workers, such as 'Env:0-1'")
    workers: list[str] = []
    for entry in entries:
        match = re.fullmatch(r"([^:,\s]+)(?::([0-9,\s-]+))?", entry.strip()) if isinstance(entry, str) else None
        if match is None:
            raise ConfigError(f"{entry!r} is no worker: write a group and ranks, such as 'Env:0-1'")
        group = worker_key(match[1])
        ranks = parse_rank_config(match[2]) if match[2] is not None else None
        workers += [group] if ranks is None else [f"{group}:{rank}" for rank in ranks]
    return tuple(dict.fromkeys(workers))


def _check_number(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ConfigError(f"{key} must be a number that is not negative, got {value!r}")


def _find_repeated_member(lines: Sequence[BandwidthGroup]) -> tuple[int, str] | None:
    """Return the index of the first group that repeats an earlier group's member, and an error message, or None."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines):
        for member in line.members:
            if member in numbers:
                return (
                    number,
                    f"{member} is in bandwidth_groups[{numbers[member]}] already: a worker has one line",
                )
            numbers[member] = number
    return None


def _read_pair(parent: Section, number: int, entry: Any) -> CrossDCPair:
    section = _child(parent, "crossdc_pairs", number, entry, ("src", "dst", "delay_ms"))
    for key in ("src", "dst"):
        _checked(section, key, partial(parse_workers, key=key))
    delay = section.number("delay_ms")
    assert delay is not None  # delay_ms is a required key
    return CrossDCPair(section.get("src"), section.get("dst"), delay)


def _read_line(parent: Section, number: int, entry: Any) -> BandwidthGroup:
    section = _child(parent, "bandwidth_groups", number, entry, ("members", "bandwidth_mbps"))
    _checked(section, "members", partial(parse_workers, key="members"))
    bandwidth = section.number("bandwidth_mbps")
    assert bandwidth is not None
    return _checked(section, "bandwidth_mbps", lambda _: BandwidthGroup(section.get("members"), bandwidth))


def _checked(section: Section, key: str, read: Callable[[Any], _Read]) -> _Read:
    try:
        return read(section.get(key))
    except ConfigError as error:
        raise section.error(str(error), key) from None


def _child(parent: Section, key: str, number: int, entry: Any, keys: Sequence[str]) -> Section:
    if not isinstance(entry, Mapping):
        raise parent.error(f"each entry must be a mapping with {', '.join(keys)}, got {entry!r}", key, number)
    return Section(entry, (*parent.steps, key, number), parent.origin, kind=f"{key} entry", known=keys, needed=keys)
