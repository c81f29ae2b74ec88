"""Accelerator cards and MIG slices as devices; selection by ``CUDA_VISIBLE_DEVICES`` or the hosts file's ``gpus``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ConfigError

logger = own_logger(__name__)


@dataclass(frozen=True)
class Device:
    """A worker's device: ``id`` is an entry of a visibility variable, ``model`` a name such as ``"H200"``."""

    id: str
    model: str


@dataclass(frozen=True)
class Card:
    """One physical device, as reported by its driver.

    Attributes:
        index: the device's number in a visibility variable.
        uuid: the device's alternative name in that variable; empty if the driver has none.
        model: name such as ``"H200"``.
        slices: UUIDs of the card's MIG slices; None if MIG is off.
    """

    index: int
    uuid: str
    model: str
    slices: tuple[str, ...] | None = None


def all_devices(cards: Sequence[Card]) -> tuple[Device, ...]:
    """Return all cards in index order; a card with MIG is replaced with its slices, because only they are usable."""
    devices: list[Device] = []
    for card in cards:
        if card.slices is None:
            devices.append(Device(str(card.index), card.model))
        else:
            devices += [Device(uuid, card.model) for uuid in card.slices]
    return tuple(devices)


def visible_devices(variable: str, value: str, cards: Sequence[Card]) -> tuple[Device, ...]:
    """Return the devices that a visibility variable such as ``CUDA_VISIBLE_DEVICES`` leaves visible, in its order.

    The ids are the entries as written. As in CUDA, the first invalid entry ends the list.
    """
    devices: list[Device] = []
    for entry in (part.strip() for part in value.split(",")):
        card = find_card(entry, cards)
        if card is None:
            break
        devices.append(Device(entry, card.model))
    if find_repeated([device.id for device in devices], cards) is not None:
        logger.warning("no device is used: %s=%s names one twice, which its driver refuses", variable, value)
        return ()
    return tuple(devices)


def find_repeated(entries: Sequence[str], cards: Sequence[Card]) -> str | None:
    """Return the first entry that names an earlier entry's device, perhaps by another name; None if there is none."""
    seen: set[str | int] = set()
    for entry in entries:
        card = find_card(entry, cards)
        device = entry if card is None or entry.startswith("MIG-") else card.index
        if device in seen:
            return entry
        seen.add(device)
    return None


def wanted_device(entry: str, cards: Sequence[Card]) -> Device:
    """Return the device named by an entry in the hosts file.

    Raises:
        ConfigError: the node has no such device; the error lists its devices.
    """
    card = find_card(entry, cards)
    if card is None:
        known = ", ".join(device.id for device in all_devices(cards)) or "none (or no driver)"
        raise ConfigError(
            f"gpus= names GPU {entry}, which this node does not have; it has: {known}\n"
            "  fix: correct gpus= in the hosts file, or leave it out"
        )
    return Device(entry, card.model)


def find_card(entry: str, cards: Sequence[Card]) -> Card | None:
    """Return the card named by an entry of a visibility variable; an unambiguous prefix of its UUID suffices."""
    if entry.isascii() and entry.isdecimal():
        return next((card for card in cards if str(card.index) == (entry.lstrip("0") or "0")), None)
    if entry.startswith("GPU-"):
        found = [card for card in cards if card.uuid.startswith(entry)]
    elif entry.startswith("MIG-GPU-"):  # a slice's older name is MIG-<card>/<instance>/<instance>
        found = [card for card in cards if entry.startswith(f"MIG-{card.uuid}/")]
    elif entry.startswith("MIG-"):
        found = [card for card in cards if any(uuid.startswith(entry) for uuid in card.slices or ())]
    else:
        found = []
    return found[0] if len(found) == 1 else None
