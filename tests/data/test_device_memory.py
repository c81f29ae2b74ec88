"""What is said to CUDA about memory that processes share, with a runtime of the test's own."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from rlinf_async.data import device_memory
from rlinf_async.data.device_memory import CudaMemory, Handle

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


def test_an_error_that_was_raised_is_not_raised_again_at_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Refusing()
    monkeypatch.setattr(device_memory, "cuda_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    with pytest.raises(RuntimeError, match="to open it failed with code 1"):
        CudaMemory().open(Handle(bytes(64), 0, 1), GPU)
    assert runtime.last == 0
