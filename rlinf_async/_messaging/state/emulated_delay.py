"""Model of emulated latency and shared bandwidth between data centres: computes each message's delay.

Workers have names such as ``"Env:0"``; a configuration may use ``"Env"`` for all of them. Only configured pairs are
distant: a message between any other two workers crosses no link, even if both are members of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

_BYTES_PER_MEGABIT: Final = 125_000

_MAX_SHARED_LINKS: Final = 4096


class DelayedPair(Protocol):
    """Interface of ``configuration.CrossDCPair``."""

    @property
    def src(self) -> Sequence[str]: ...

    @property
    def dst(self) -> Sequence[str]: ...

    @property
    def delay_ms(self) -> float: ...


class LinkGroup(Protocol):
    """Interface of ``configuration.BandwidthGroup``."""

    @property
    def members(self) -> Sequence[str]: ...

    @property
    def bandwidth_mbps(self) -> float: ...


class Config(Protocol):
    """Interface of ``configuration.NetEmulationConfig``."""

    @property
    def symmetric(self) -> bool: ...

    @property
    def crossdc_pairs(self) -> Sequence[DelayedPair]: ...

    @property
    def bandwidth_groups(self) -> Sequence[LinkGroup]: ...


@dataclass(frozen=True)
class SharedLink:
    """A link whose bandwidth is shared by some workers.

    Attributes:
        name: name of the link, the same in all processes that use it.
        rate: bandwidth in bytes per second.
    """

    name: str
    rate: float


@dataclass(frozen=True)
class Crossing:
    """The emulated path between a sender and its receivers.

    Attributes:
        delay: latency in seconds to the farthest receiver.
        links: links that the message crosses; each is listed once, however many receivers are behind it.
    """

    delay: float
    links: tuple[SharedLink, ...]


class SharedLinks:
    """The reservations of a run's emulated links."""

    def __init__(self) -> None:
        self._free_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<SharedLinks {sorted(self._free_at)}>"

    def reserve(self, links: Iterable[SharedLink], nbytes: int, now: float) -> float:
        """Reserve the links for a message, behind earlier messages.

        Args:
            now: current time in seconds, on a clock shared by all callers.

        Returns:
            Seconds until the slowest link has carried the message; 0.0 if there are no links.
        """
        through = now
        for link in links:
            # Move the link to the end, because the loop below drops links from the front.
            free_at = max(now, self._free_at.pop(link.name, now)) + nbytes / link.rate
            self._free_at[link.name] = free_at
            through = max(through, free_at)
        while len(self._free_at) > _MAX_SHARED_LINKS:  # drops the least recently used link
            del self._free_at[next(iter(self._free_at))]
        return through - now


class NetEmulation:
    """The emulated network of a configuration.

    Example:
        emulation = NetEmulation(config)
        emulation.reserve("Env:0", "Rollout:1", 1 << 20, now=clock.monotonic())    # seconds until it has arrived
    """

    def __init__(self, config: Config) -> None:
        self._delays: dict[tuple[str, str], float] = {}
        for pair in config.crossdc_pairs:
            for src in pair.src:
                for dst in pair.dst:
                    self._add(src, dst, pair.delay_ms / 1e3)
                    if config.symmetric:
                        self._add(dst, src, pair.delay_ms / 1e3)
        self._links: dict[str, SharedLink] = {}
        for group in config.bandwidth_groups:
            link = SharedLink(",".join(group.members), group.bandwidth_mbps * _BYTES_PER_MEGABIT)
            self._links.update(dict.fromkeys(group.members, link))
        self._taken = SharedLinks()
        self.crossing = lru_cache(maxsize=4096)(self._crossing)

    def __repr__(self) -> str:
        return f"<NetEmulation [{len(self._delays)} pairs, {len(set(self._links.values()))} links]>"

    def _add(self, src: str, dst: str, delay: float) -> None:
        self._delays[src, dst] = max(delay, self._delays.get((src, dst), 0.0))

    def delay(self, src: str, dst: str) -> float | None:
        """Return the latency in seconds between two workers; None if they are not a configured pair.

        A pair that names ranks takes precedence over a pair that names a group.
        """
        for near in _names(src):
            for far in _names(dst):
                found = self._delays.get((near, far))
                if found is not None:
                    return found
        return None

    def _crossing(self, src: str, dsts: tuple[str, ...]) -> Crossing | None:
        delays = {dst: delay for dst in dsts if (delay := self.delay(src, dst)) is not None}
        if not delays:
            return None
        links = [link for name in (src, *delays) if (link := self._link(name)) is not None]
        return Crossing(max(delays.values()), tuple(dict.fromkeys(links)))

    def _link(self, worker: str) -> SharedLink | None:
        return next((self._links[name] for name in _names(worker) if name in self._links), None)

    def is_idle(self, group: LinkGroup) -> bool:
        """True if no message crosses the link, because none of its members belongs to a distant pair."""
        far = {name for pair in self._delays for name in pair}
        return not any(name in _names(member) or member in _names(name) for member in group.members for name in far)

    # -- use without a cluster --------------------------------------------------------------------------------------

    def reserve(self, src: str, dst: str, nbytes: int, now: float) -> float:
        """Reserve the links for a message sent now. Return the seconds until the message has arrived."""
        return self.reserve_broadcast(src, [dst], nbytes, now)

    def reserve_broadcast(self, src: str, dsts: Sequence[str], nbytes: int, now: float) -> float:
        """Reserve the links for a broadcast. Return the seconds until the last receiver has the message."""
        crossing = self.crossing(src, tuple(dsts))
        if crossing is None:
            return 0.0
        return self._taken.reserve(crossing.links, nbytes, now) + crossing.delay


def _names(worker: str) -> tuple[str, ...]:
    """Return the names that a configuration may use for a worker: its own and its group's."""
    group, colon, _ = worker.partition(":")
    return (worker, group) if colon else (worker,)
