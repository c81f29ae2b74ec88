"""The family of NVIDIA GPUs and their MIG slices: detection by NVML, without a CUDA context."""

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
"""GPU order of NVML and nvidia-smi; CUDA's default order is fastest first."""


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
        # NCCL's cuMem allocator costs extra memory with CUDA graphs. Inference engines switch it off, too, and both
        # ends of a communicator must agree.
        return {**super().get_variables(visible), _ORDER_VARIABLE: _ORDER, "NCCL_CUMEM_ENABLE": "0"}


def read_cards() -> tuple[Card, ...]:
    """Return all GPUs that this machine's driver lists; empty, without a warning, if NVML is not installed."""
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
    """Map each device id to ``used`` and total ``memory`` in bytes, and the last second's utilization in ``percent``.

    Devices that do not answer are omitted. MIG slices have no utilization.
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
    import pynvml  # imported late, so that importing the framework does not load NVML

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # Machines without GPUs report these two errors; any other error deserves a warning.
        if error.value not in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            logger.warning("no GPU is used: the NVIDIA driver does not answer: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _slices(nvml: Any, handle: object) -> tuple[str, ...] | None:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # the card does not support MIG
        return None
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slices.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
        except nvml.NVMLError:  # no slice has this number
            continue
    return tuple(slices)
