"""State of daemons: device locks, waiters in order (``DeviceLocks``); port leases (``PortLeases``), their range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_LOWEST_PORT: Final = 1024
"""Below it a process needs privileges."""

_HIGHEST_PORT: Final = 65535

_QUIET_PORT: Final = 10000
"""Below it, too many services are at home."""

_MIN_PORTS: Final = 1000


class Ticket(NamedTuple):
    """One acquisition: whose it is, and its number among that holder's."""

    holder: int
    number: int


@dataclass
class _Request:
    name: str
    devices: frozenset[int]


@dataclass
class DeviceLocks:
    """Sets of devices, each held by one holder at a time, as often as it likes.

    A holder that has all the devices of a request gets it at once; every other request waits until all its devices are
    free and no earlier request waits for one of them.  So requests for one device are served in order, and none is half
    served.  Whatever becomes of a ticket, ``give_back`` undoes it; ``drop`` undoes all of a holder's.

    Example:
        locks.take(Ticket(7, 1), "actor:0", [0, 1])      # True
        locks.take(Ticket(8, 1), "rollout:0", [1])       # False: it waits
        locks.give_back(Ticket(7, 1))                    # [Ticket(8, 1)]: tell it
    """

    held: dict[Ticket, _Request] = field(default_factory=dict)
    waiting: dict[Ticket, _Request] = field(default_factory=dict)
    _owners: dict[int, list[Ticket]] = field(default_factory=dict, repr=False)
    """By device, the tickets that it is held with; all are of one holder."""

    def take(self, ticket: Ticket, name: str, devices: Iterable[int]) -> bool:
        """Whether the devices are the holder's now; otherwise the ticket waits.

        Args:
            name: what the holder is called, for those who ask what they wait for.

        Raises:
            ValueError: the ticket has been used.
        """
        if ticket in self.held or ticket in self.waiting:
            raise ValueError(f"{ticket} has been used for another acquisition")
        request = _Request(name, frozenset(devices))
        if all(self._is_held_by(device, ticket.holder) for device in request.devices):
            self._grant(ticket, request)
            return True
        self.waiting[ticket] = request
        return ticket in self._serve()

    def give_back(self, ticket: Ticket) -> list[Ticket]:
        """Ends an acquisition, granted or not; the tickets that are granted now, in order."""
        self._remove(ticket)
        return self._serve()

    def drop(self, holder: int) -> list[Ticket]:
        """Ends all acquisitions of a holder; the tickets that are granted now."""
        for ticket in [ticket for ticket in (*self.held, *self.waiting) if ticket.holder == holder]:
            self._remove(ticket)
        return self._serve()

    def names(self, ticket: Ticket) -> list[str]:
        """Who stands in the way of a ticket that waits: the holders of its devices, then those who wait before it."""
        request = self.waiting.get(ticket)
        if request is None:
            return []
        before = []
        for other, wanted in self.waiting.items():
            if other == ticket:
                break
            if wanted.devices & request.devices:
                before.append(wanted.name)
        holders = [
            self.held[owner].name for device in sorted(request.devices) for owner in self._owners.get(device, ())
        ]
        return list(dict.fromkeys((*holders, *before)))

    def holders(self) -> set[int]:
        """Everybody who has or wants something."""
        return {ticket.holder for ticket in (*self.held, *self.waiting)}

    def _is_held_by(self, device: int, holder: int) -> bool:
        owners = self._owners.get(device)
        return owners is not None and owners[0].holder == holder

    def _grant(self, ticket: Ticket, request: _Request) -> None:
        self.held[ticket] = request
        for device in request.devices:
            self._owners.setdefault(device, []).append(ticket)

    def _remove(self, ticket: Ticket) -> None:
        self.waiting.pop(ticket, None)
        request = self.held.pop(ticket, None)
        for device in request.devices if request is not None else ():
            self._owners[device].remove(ticket)
            if not self._owners[device]:
                del self._owners[device]

    def _serve(self) -> list[Ticket]:
        """Grants whatever waits and can be granted, in order."""
        wanted: set[int] = set()
        granted = []
        for ticket, request in list(self.waiting.items()):
            free = all(
                device not in self._owners or self._is_held_by(device, ticket.holder) for device in request.devices
            )
            has_them = all(self._is_held_by(device, ticket.holder) for device in request.devices)
            if has_them or (free and not request.devices & wanted):
                del self.waiting[ticket]
                self._grant(ticket, request)
                granted.append(ticket)
            else:
                wanted |= request.devices
        return granted


@dataclass
class PortLeases:
    """The leased ports of one node, by owner."""

    owners: dict[int, int] = field(default_factory=dict)

    def lease(self, port: int, owner: int) -> bool:
        """False if it is somebody's already, the asker's own included: each promise is for one use."""
        if port in self.owners:
            return False
        self.owners[port] = owner
        return True

    def drop(self, owner: int) -> list[int]:
        """The ports that are free again."""
        ports = [port for port, of in self.owners.items() if of == owner]
        for port in ports:
            del self.owners[port]
        return ports


def parse_port_range(text: str) -> tuple[int, int]:
    """First and last port of ``"20000-20099"``.

    Raises:
        ValueError: it is something else, or holds a port that an ordinary process may not use.
    """
    first, _, last = (part.strip() for part in text.partition("-"))
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in (first, last)):
        raise ValueError(f"{text!r} is no range of ports")
    if not _LOWEST_PORT <= int(first) <= int(last) <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is no range of ports from {_LOWEST_PORT} to {_HIGHEST_PORT}")
    return int(first), int(last)


def port_range(ephemeral: tuple[int, int], most: int | None) -> range:
    """The ports to choose from: those that the kernel gives to nobody by chance, if there are enough of them.

    Args:
        ephemeral: first and last port that the kernel chooses for connections and for those who bind to port 0.
        most: the highest port that will do; None for any.

    Raises:
        ValueError: there is no such port that an ordinary process may use.
    """
    if most is not None and not _LOWEST_PORT <= most <= _HIGHEST_PORT:
        raise ValueError(f"max_port_num must be from {_LOWEST_PORT} to {_HIGHEST_PORT}, got {most!r}")
    highest = _HIGHEST_PORT if most is None else most
    quiet = range(_QUIET_PORT, min(ephemeral[0], highest + 1))
    if len(quiet) >= _MIN_PORTS:
        return quiet
    return range(_LOWEST_PORT, highest + 1)
