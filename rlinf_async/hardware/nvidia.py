"""Family of NVIDIA GPUs and their MIG slices: detection by NVML, without a CUDA context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async.hardware.accelerator import AcceleratorFamily, AcceleratorType
from rlinf_async.hardware.cards import Card, Device

logger = own_logger(__name__)


_ORDER_VARIABLE: Final = "CUDA_DEVICE_ORDER"
_ORDER: Final = "PCI_BUS_ID"
"""How the driver's library numbers GPUs, and nvidia-smi; CUDA's own default is the fastest first."""


class NvidiaGpus(AcceleratorFamily):
    type = AcceleratorType.NV_GPU
    visibility_variable = "CUDA_VISIBLE_DEVICES"
    collective_backend = "nccl"
    nic_variable = "NCCL_SOCKET_IFNAME"
    torch_platform = "cuda"
    sends_directly = True

    def read_cards(self, root: Path) -> Sequence[Card]:
        return read_cards()

    def get_visible(self, environ: Mapping[str, str], cards: Sequence[Card]) -> tuple[Device, ...]:
        if cards and environ.get(_ORDER_VARIABLE, _ORDER) != _ORDER:
            logger.warning("%s=%s is not followed: GPUs are numbered as by nvidia-smi, %s, here and in workers",
                           _ORDER_VARIABLE, environ[_ORDER_VARIABLE], _ORDER)  # fmt: skip
        return super().get_visible(environ, cards)

    def get_variables(self, visible: Sequence[str]) -> dict[str, str]:
        # NCCL's cuMem allocator costs memory beside CUDA graphs; inference engines switch it off too, and both
        # ends of a communicator must agree.
        return {**super().get_variables(visible), _ORDER_VARIABLE: _ORDER, "NCCL_CUMEM_ENABLE": "0"}


def read_cards() -> tuple[Card, ...]:
    """All GPUs of this machine that the driver lets us see; none, quietly, without its library."""
    with _library() as nvml:
        if nvml is None:
            return ()
        cards = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                model = nvml.nvmlDeviceGetName(handle).removeprefix("NVIDIA ")
                cards.append(Card(index, nvml.nvmlDeviceGetUUID(handle), model, _slices(nvml, handle)))
            except nvml.NVMLError as error:
                logger.warning("GPU %d is left out: %s", index, error)
        return tuple(cards)


def read_use(ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Bytes of memory, ``used`` of ``memory``, and ``percent`` of the last second at work, by device id.

    A device that does not tell is left out; of a MIG slice the work is not known.
    """
    found: dict[str, dict[str, int]] = {}
    with _library() as nvml:
        for id_ in ids if nvml is not None else ():
            try:
                by_name = nvml.nvmlDeviceGetHandleByIndex if id_.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
                handle = by_name(int(id_) if id_.isdecimal() else id_)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                found[id_] = {"used": memory.used, "memory": memory.total}
                found[id_]["percent"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            except nvml.NVMLError:
                continue
    return found


@contextmanager
def _library() -> Iterator[Any]:
    """The library, open; None where it does not answer."""
    import pynvml  # not at the top: what imports the framework need not wait for it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # So a machine without GPUs answers; every other failure is worth a line in the log.
        if error.value not in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            logger.warning("no GPU is used: the NVIDIA driver does not answer: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _slices(nvml: Any, handle: object) -> tuple[str, ...] | None:
    """UUIDs of a card's MIG slices; None for a card that is whole."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a card that cannot be cut
        return None
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slices.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except nvml.NVMLError:  # a number that no slice has
            continue
    return tuple(slices)
