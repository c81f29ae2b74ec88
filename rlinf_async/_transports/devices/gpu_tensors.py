"""Helpers for tensors on GPUs in device-independent code: copies, stream order, and a link's own ``SideStream``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_cuda: Any = torch.cuda  # torch.cuda has few annotations


def to_gpu(flat: torch.Tensor) -> torch.Tensor:
    """Return a copy on the current GPU, ready for any stream; if there is no GPU, return the tensor itself."""
    return flat.cuda() if torch.cuda.is_available() else flat


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a new tensor on the current GPU, or on the CPU if there is no GPU."""
    return torch.empty(shape, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")


def take_over(flat: torch.Tensor) -> torch.Tensor:
    """Return a link's tensor for use on the current device and in the current stream."""
    if not flat.is_cuda:
        return flat
    flat.record_stream(torch.cuda.current_stream(flat.device))  # allocated in the link's stream
    return flat if flat.device.index == torch.cuda.current_device() else flat.cuda()


def mark(tensor: torch.Tensor) -> Any:
    """Return the current stream's position on a tensor's GPU; None for a CPU tensor."""
    return torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None


@contextlib.contextmanager
def settled_after(mark: Any, tensor: torch.Tensor) -> Iterator[None]:
    """Context manager: the block may write to a tensor after ``mark``; after exit, any stream may read it."""
    if mark is None:
        yield
        return
    stream = torch.cuda.current_stream(tensor.device)
    stream.wait_event(mark)
    yield
    stream.synchronize()


class SideStream:
    """A CUDA stream for a link's copies on one device, created on first use; does nothing on the CPU.

    Compute code uses the thread's default stream, where copies would wait for all queued work, and later work would
    wait for the copies. Memory allocated in this stream belongs to it: code that uses it in another stream must call
    ``record_stream``, or finish before the memory is released.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        if self._device.type != "cuda":
            yield
            return
        if self._stream is None:
            self._stream = _cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            yield

    @contextlib.contextmanager
    def until_done(self) -> Iterator[None]:
        """Context manager like ``entered``; on exit, even after an error, waits for all work begun inside."""
        with self.entered():
            try:
                yield
            finally:
                if self._stream is not None:
                    self._stream.synchronize()
