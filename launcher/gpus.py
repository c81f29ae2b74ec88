"""The NVIDIA GPUs that this node may use, asked of the driver's management library: no CUDA context is made."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from rlinf_async.errors import ConfigError

logger = logging.getLogger(__name__)

_NOTHING_THERE = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
"""How a machine without GPUs answers; every other failure is worth a line in the log."""


@dataclass(frozen=True)
class Gpu:
    """One device.  ``id`` is an entry of ``CUDA_VISIBLE_DEVICES``; ``model`` is for example ``"H200"``."""

    id: str
    model: str


@dataclass(frozen=True)
class Card:
    """What the driver tells of one physical GPU: its index, its UUID, and its MIG slices' UUIDs if it is cut."""

    index: int
    uuid: str
    model: str
    slices: tuple[str, ...] | None = None


def find_gpus(
    environ: Mapping[str, str], wanted: Sequence[str] | None = None, fake: int | None = None
) -> tuple[Gpu, ...]:
    """The devices that workers of this node may use, in their order.

    Args:
        environ: its ``CUDA_VISIBLE_DEVICES`` is honoured as CUDA would: entries are kept as they are written,
            and the first that means no device ends the list.
        wanted: ids from the hosts file, in place of the variable.
        fake: so many devices are made up, whatever is there.

    Raises:
        ConfigError: ``wanted`` names a device that is not there.
    """
    if fake is not None:
        return tuple(Gpu(str(index), "fake") for index in range(fake))
    if wanted is not None and not wanted:
        return ()
    cards = read_cards()
    if wanted is not None:
        return tuple(_wanted(id_, cards) for id_ in wanted)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return _all(cards) if visible is None else _visible(visible, cards)


def read_cards() -> tuple[Card, ...]:
    """All GPUs of this machine that the driver lets us see; none, quietly, without its library."""
    with _library() as there:
        if not there:
            return ()
        cards = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                model = pynvml.nvmlDeviceGetName(handle).removeprefix("NVIDIA ")
                cards.append(Card(index, pynvml.nvmlDeviceGetUUID(handle), model, _slices(handle)))
            except pynvml.NVMLError as error:
                logger.warning("GPU %d is left out: %s", index, error)
        return tuple(cards)


@contextmanager
def _library() -> Iterator[bool]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value not in _NOTHING_THERE:
            logger.warning("no GPU is used: the NVIDIA driver does not answer: %s", error)
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def _slices(handle: object) -> tuple[str, ...] | None:
    """UUIDs of a card's MIG slices; None for a card that is whole."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # a card that cannot be cut
        return None
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    slices = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slices.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except pynvml.NVMLError:  # a number that no slice has
            continue
    return tuple(slices)


def _all(cards: Sequence[Card]) -> tuple[Gpu, ...]:
    """Every card by its index; of a card that is cut, its slices, which is all that CUDA can use of it."""
    gpus: list[Gpu] = []
    for card in cards:
        if card.slices is None:
            gpus.append(Gpu(str(card.index), card.model))
        else:
            gpus += [Gpu(uuid, card.model) for uuid in card.slices]
    return tuple(gpus)


def _visible(variable: str, cards: Sequence[Card]) -> tuple[Gpu, ...]:
    gpus: list[Gpu] = []
    for entry in (part.strip() for part in variable.split(",")):
        card = _card(entry, cards)
        if card is None:
            break
        gpus.append(Gpu(entry, card.model))
    if len({gpu.id for gpu in gpus}) < len(gpus):
        logger.warning("no GPU is used: CUDA_VISIBLE_DEVICES=%s names one twice, which CUDA refuses", variable)
        return ()
    return tuple(gpus)


def _wanted(entry: str, cards: Sequence[Card]) -> Gpu:
    card = _card(entry, cards)
    if card is None:
        there = ", ".join(gpu.id for gpu in _all(cards)) or "none (or no NVIDIA driver)"
        raise ConfigError(
            f"gpus= names GPU {entry}, which this node does not have; it has: {there}\n"
            "  fix: correct gpus= in the hosts file, or leave it out"
        )
    return Gpu(entry, card.model)


def _card(entry: str, cards: Sequence[Card]) -> Card | None:
    """The card that an entry of the variable means; UUIDs may be cut short where that is unmistakable."""
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
