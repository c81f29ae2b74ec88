"""State of a daemon: device locks with ordered waiters (``DeviceLocks``), port leases (``PortLeases``), port ranges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_LOWEST_PORT: Final = 1024

_HIGHEST_PORT: Final = 65535

_QUIET_PORT: Final = 10000  # many services listen on lower ports, so avoid those

_MIN_PORTS: Final = 1000


class Ticket(NamedTuple):
    """One acquisition: its holder, and a number that is unique for that holder."""

    holder: int
    number: int


@dataclass
class _LockRequest:
    name: str
    devices: frozenset[int]


@dataclass
class DeviceLocks:
    """Locks on sets of devices; a device has one holder at a time, which may lock it any number of times.

    A request for devices that its holder already has is granted immediately. Any other request waits until all its
    devices are free and no earlier request waits for one of them. Requests for a device are served in order, and each
    gets all its devices or none. ``release`` undoes a ticket in any state; ``drop`` undoes all tickets of a holder.
    """

    held: dict[Ticket, _LockRequest] = field(default_factory=dict)
    waiting: dict[Ticket, _LockRequest] = field(default_factory=dict)
    # Maps each locked device to its tickets, which all have the same holder.
    _owners: dict[int, list[Ticket]] = field(default_factory=dict, repr=False)

    def take(self, ticket: Ticket, name: str, devices: Iterable[int]) -> bool:
        """Lock devices for the holder ``name``. Return False if the request must wait; ValueError for a used ticket."""
        if ticket in self.held or ticket in self.waiting:
            raise ValueError(f"{ticket} has been used for another acquisition")
        request = _LockRequest(name, frozenset(devices))
        if all(self._is_held_by(device, ticket.holder) for device in request.devices):
            self._grant(ticket, request)
            return True
        self.waiting[ticket] = request
        return ticket in self._serve()

    def release(self, ticket: Ticket) -> list[Ticket]:
        """End an acquisition, granted or waiting. Return the tickets that are granted as a result, in order."""
        self._remove(ticket)
        return self._serve()

    def drop(self, holder: int) -> list[Ticket]:
        for ticket in [ticket for ticket in (*self.held, *self.waiting) if ticket.holder == holder]:
            self._remove(ticket)
        return self._serve()

    def names(self, ticket: Ticket) -> list[str]:
        """Return the names that block a waiting ticket: the holders of its devices, then earlier waiters."""
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
        return {ticket.holder for ticket in (*self.held, *self.waiting)}

    def _is_held_by(self, device: int, holder: int) -> bool:
        owners = self._owners.get(device)
        return owners is not None and owners[0].holder == holder

    def _grant(self, ticket: Ticket, request: _LockRequest) -> None:
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
    """The leased ports of one node, with their owners."""

    owners: dict[int, int] = field(default_factory=dict)

    def lease(self, port: int, owner: int) -> bool:
        """Lease a port. Return False if it is already leased, even by the same owner."""
        if port in self.owners:
            return False
        self.owners[port] = owner
        return True

    def drop(self, owner: int) -> list[int]:
        ports = [port for port, of in self.owners.items() if of == owner]
        for port in ports:
            del self.owners[port]
        return ports


def parse_port_range(text: str) -> tuple[int, int]:
    """Return the first and last port of ``"20000-20099"``; ValueError for a malformed range or privileged ports."""
    first, _, last = (part.strip() for part in text.partition("-"))
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in (first, last)):
        raise ValueError(f"{text!r} is no range of ports")
    if not _LOWEST_PORT <= int(first) <= int(last) <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is no range of ports from {_LOWEST_PORT} to {_HIGHEST_PORT}")
    return int(first), int(last)


def port_range(ephemeral: tuple[int, int], most: int | None) -> range:
    """Return the ports to choose from: if there are enough, only ports that the kernel does not assign itself.

    Args:
        ephemeral: first and last port that the kernel assigns to connections and to sockets bound to port 0.
        most: highest allowed port; None for any.

    Raises:
        ValueError: ``most`` leaves no port that an unprivileged process may use.
    """
    if most is not None and not _LOWEST_PORT <= most <= _HIGHEST_PORT:
        raise ValueError(f"max_port_num must be from {_LOWEST_PORT} to {_HIGHEST_PORT}, got {most!r}")
    highest = _HIGHEST_PORT if most is None else most
    quiet = range(_QUIET_PORT, min(ephemeral[0], highest + 1))
    if len(quiet) >= _MIN_PORTS:
        return quiet
    return range(_LOWEST_PORT, highest + 1)
