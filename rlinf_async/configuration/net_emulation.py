"""``cluster.net_emulation``: which workers are to seem far apart, and how thin the lines between them are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import ConfigError

from .document import Origin, Steps, origin_of, plain
from .ranks import parse_rank_config
from .section import Section, misplaced

_GROUP = "Group"


@dataclass(frozen=True)
class CrossDCPair:
    """Workers of two data centres.

    Attributes:
        src, dst: names of workers, such as ``"Env:0"``; ``"Env"`` for all of a group.
        delay_ms: milliseconds that a message from one to the other takes longer.
    """

    src: tuple[str, ...]
    dst: tuple[str, ...]
    delay_ms: float


@dataclass(frozen=True)
class BandwidthGroup:
    """Workers behind one line.

    Attributes:
        members: names of workers, as in ``CrossDCPair``.
        bandwidth_mbps: megabits in a second, 125000 bytes each.
    """

    members: tuple[str, ...]
    bandwidth_mbps: float


@dataclass(frozen=True)
class NetEmulationConfig:
    """The section, with ranges of ranks written out and a trailing ``Group`` taken off names.

    Attributes:
        symmetric: a pair's delay holds in both directions.
        crossdc_pairs: who is far from whom.
        bandwidth_groups: who shares a line.
    """

    symmetric: bool = True
    crossdc_pairs: tuple[CrossDCPair, ...] = ()
    bandwidth_groups: tuple[BandwidthGroup, ...] = ()

    @classmethod
    def from_cfg(cls, cfg: Any) -> NetEmulationConfig | None:
        """Reads the section; None where there is none, or it is not enabled.

        Raises:
            ConfigError: a key, a name or a number is wrong, or a list of workers is empty.
        """
        return read_net_emulation(plain(cfg), ("net_emulation",), origin_of(cfg))


def read_net_emulation(value: Any, steps: Steps, origin: Origin | None) -> NetEmulationConfig | None:
    """Reads the section; None where there is none, or it is not enabled.  Raises ConfigError."""
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
    behind: dict[str, int] = {}
    for number, line in enumerate(lines):
        for member in line.members:
            if member in behind:
                raise section.error(
                    f"{member} is in bandwidth_groups[{behind[member]}] already: a worker has one line",
                    "bandwidth_groups",
                    number,
                    "members",
                )
            behind[member] = number
    return NetEmulationConfig(symmetric, tuple(pairs), tuple(lines))


def worker_key(name: str) -> str:
    """A worker's name as the emulation compares it: ``"EnvGroup:0"`` is ``"Env:0"``."""
    group, colon, rank = name.partition(":")
    return (group.removesuffix(_GROUP) or group) + colon + rank


def _read_pair(parent: Section, number: int, entry: Any) -> CrossDCPair:
    keys = ("src", "dst", "delay_ms")
    section = _child(parent, "crossdc_pairs", number, entry, keys)
    delay = section.number("delay_ms")
    assert delay is not None  # it is needed
    return CrossDCPair(_read_workers(section, "src"), _read_workers(section, "dst"), delay)


def _read_line(parent: Section, number: int, entry: Any) -> BandwidthGroup:
    section = _child(parent, "bandwidth_groups", number, entry, ("members", "bandwidth_mbps"))
    bandwidth = section.number("bandwidth_mbps")
    if not bandwidth:
        raise section.error("bandwidth_mbps must be more than 0: nothing would ever arrive", "bandwidth_mbps")
    return BandwidthGroup(_read_workers(section, "members"), bandwidth)


def _child(parent: Section, key: str, number: int, entry: Any, keys: Sequence[str]) -> Section:
    if not isinstance(entry, Mapping):
        raise parent.error(f"each entry must be a mapping with {', '.join(keys)}, got {entry!r}", key, number)
    return Section(entry, (*parent.steps, key, number), parent.origin, kind=f"{key} entry", known=keys, needed=keys)


def _read_workers(section: Section, key: str) -> tuple[str, ...]:
    value = section.get(key)
    entries = [value] if isinstance(value, str) else section.entries(key)
    if not entries:
        raise section.error(f"{key} must not be empty: name workers, such as 'Env:0-1'", key)
    workers: list[str] = []
    for entry in entries:
        match = re.fullmatch(r"([^:,\s]+)(?::([0-9,\s-]+))?", entry.strip()) if isinstance(entry, str) else None
        if match is None:
            raise section.error(f"{entry!r} is no worker: write a group and ranks, such as 'Env:0-1'", key)
        group = worker_key(match[1])
        try:
            ranks = parse_rank_config(match[2]) if match[2] is not None else None
        except ConfigError as error:
            raise section.error(str(error), key) from None
        workers += [group] if ranks is None else [f"{group}:{rank}" for rank in ranks]
    return tuple(dict.fromkeys(workers))
