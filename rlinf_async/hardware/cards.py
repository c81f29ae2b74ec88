"""Accelerator cards and MIG slices as devices; selection by ``CUDA_VISIBLE_DEVICES`` or the hosts file's ``gpus``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ConfigError

logger = own_logger(__name__)


@dataclass(frozen=True)
class Device:
    """A device for a worker: ``id`` is an entry of a list of visible devices, ``model`` for example ``"H200"``."""

    id: str
    model: str


@dataclass(frozen=True)
class Card:
    """One physical device as its driver tells of it.

    Attributes:
        index: its number in a list of visible devices.
        uuid: its other name there; empty where the driver has none.
        model: for example ``"H200"``.
        slices: the UUIDs of what it is cut into (MIG); None for a card that is whole.
    """

    index: int
    uuid: str
    model: str
    slices: tuple[str, ...] | None = None


def all_devices(cards: Sequence[Card]) -> tuple[Device, ...]:
    """Every card by its index; of a card that is cut, its slices, which is all that can be used of it."""
    devices: list[Device] = []
    for card in cards:
        if card.slices is None:
            devices.append(Device(str(card.index), card.model))
        else:
            devices += [Device(uuid, card.model) for uuid in card.slices]
    return tuple(devices)


def visible_devices(variable: str, value: str, cards: Sequence[Card]) -> tuple[Device, ...]:
    """What the value of ``CUDA_VISIBLE_DEVICES`` or of its like leaves visible, in its order.

    Entries are kept as they are written; the first that means no device ends the list, as CUDA has it.
    """
    devices: list[Device] = []
    for entry in (part.strip() for part in value.split(",")):
        card = find_card(entry, cards)
        if card is None:
            break
        devices.append(Device(entry, card.model))
    if len({device.id for device in devices}) < len(devices):
        logger.warning("no device is used: %s=%s names one twice, which its driver refuses", variable, value)
        return ()
    return tuple(devices)


def wanted_device(entry: str, cards: Sequence[Card]) -> Device:
    """The device that the hosts file names.

    Raises:
        ConfigError: it is not there; says what is.
    """
    card = find_card(entry, cards)
    if card is None:
        there = ", ".join(device.id for device in all_devices(cards)) or "none (or no driver)"
        raise ConfigError(
            f"gpus= names GPU {entry}, which this node does not have; it has: {there}\n"
            "  fix: correct gpus= in the hosts file, or leave it out"
        )
    return Device(entry, card.model)


def find_card(entry: str, cards: Sequence[Card]) -> Card | None:
    """The card that an entry of such a list means; UUIDs may be cut short where that is unmistakable."""
    if entry.isascii() and entry.isdecimal():
        return next((card for card in cards if card.index == int(entry)), None)
    if entry.startswith("GPU-"):
        found = [card for card in cards if card.uuid.startswith(entry)]
    elif entry.startswith("MIG-GPU-"):  # the older way to name a slice: MIG-<card>/<instance>/<instance>
        found = [card for card in cards if entry.startswith(f"MIG-{card.uuid}/")]
    elif entry.startswith("MIG-"):
        found = [card for card in cards if any(uuid.startswith(entry) for uuid in card.slices or ())]
    else:
        found = []
    return found[0] if len(found) == 1 else None
