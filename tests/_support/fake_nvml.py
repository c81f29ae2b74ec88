"""A stand-in for the library that NVIDIA's driver comes with."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

H200 = "NVIDIA H200"


class FakeLibrary:
    """Stands in for the driver's library: cards by index, each with a UUID and perhaps MIG slices."""

    def __init__(self, cards: list[tuple[str, list[str | None] | None]]) -> None:
        self.cards = cards
        self.open = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(pynvml, name, getattr(self, name))
        return self

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        uuid, slices = self.cards[index]
        if uuid == "lost":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(uuid=uuid, slices=slices)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        for own, slices in self.cards:
            if uuid == own or uuid in (slices or ()):
                return SimpleNamespace(uuid=uuid, slices=None if uuid != own else slices)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace) -> object:
        return SimpleNamespace(used=3 << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: SimpleNamespace) -> object:
        if handle.uuid.startswith("MIG"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=97)

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> str:
        return H200

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str:
        return str(handle.uuid)

    def nvmlDeviceGetMigMode(self, handle: SimpleNamespace) -> list[int]:
        if handle.slices is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(handle.slices)), 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: SimpleNamespace) -> int:
        return len(handle.slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: SimpleNamespace, number: int) -> object:
        if handle.slices[number] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return SimpleNamespace(uuid=handle.slices[number], slices=None)

    @classmethod
    def with_four_cards(cls, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
        """Two whole cards, one that could be cut but is not, one cut into two with a gap between."""
        return cls(
            [("GPU-aa11", None), ("GPU-aa22", None), ("GPU-bb", []), ("GPU-cc", ["MIG-1", None, "MIG-2"])]
        ).install(monkeypatch)
