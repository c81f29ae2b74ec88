"""CUDA IPC memory handles, with a fake CUDA runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._transports.devices import device_memory
from rlinf_async._transports.devices.device_memory import CudaMemory, IpcHandle

GPU = torch.device("cuda", 0)


class Refusing:
    """A runtime in which everything fails, and which keeps the last error."""

    def __init__(self) -> None:
        self.last = 0

    def __getattr__(self, name: str) -> Any:
        return self._fail

    def _fail(self, *arguments: Any) -> int:
        self.last = 1
        return 1

    def cudaGetLastError(self) -> int:
        last, self.last = self.last, 0
        return last


class Runtime:
    """One that says what was asked of it, and with which device current."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.device = ""
        self.refuses = ""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, self.device))
            return int(name == self.refuses)

        return call

    @contextlib.contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        self.device = str(device)
        yield
        self.device = ""


def test_memory_is_closed_where_it_was_opened_and_opened_anew_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(device_memory, "cuda_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", runtime.on)
    monkeypatch.setattr(torch, "as_tensor", lambda region, device: region)
    memory, second = CudaMemory(), torch.device("cuda", 1)
    opened, closed = "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle"
    for _ in range(2):
        for _ in range(2):
            memory.open(IpcHandle(bytes(64), 0, 1), second)
        memory.close()
        memory.close()
    assert runtime.calls == [(opened, "cuda:1"), (closed, "cuda:1")] * 2
    runtime.calls.clear()
    runtime.refuses = closed
    memory.open(IpcHandle(bytes(64), 0, 1), second)
    memory.open(IpcHandle(b"1" * 64, 0, 1), GPU)
    with pytest.raises(RuntimeError, match="to close it failed with code 1"):
        memory.close()
    assert [call for call in runtime.calls if call[0] == closed] == [(closed, "cuda:1"), (closed, "cuda:0")]


def test_an_error_that_was_raised_is_not_raised_again_at_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Refusing()
    monkeypatch.setattr(device_memory, "cuda_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    with pytest.raises(RuntimeError, match="to open it failed with code 1"):
        CudaMemory().open(IpcHandle(bytes(64), 0, 1), GPU)
    assert runtime.last == 0


def test_a_thread_that_has_not_used_cuda_gets_a_context_before_the_driver_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime()
    monkeypatch.setattr(device_memory, "cuda_runtime", lambda: runtime)
    monkeypatch.setattr(device_memory, "_driver", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", runtime.on)

    class Tensor:
        device = torch.device("cuda", 1)
        nbytes = 5

        def data_ptr(self) -> int:
            return 4096

    CudaMemory().export(Tensor())  # type: ignore[arg-type]
    assert [name for name, _ in runtime.calls[:2]] == ["cudaSetDevice", "cuMemGetAddressRange_v2"]
