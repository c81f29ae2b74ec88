"""Tensors on GPUs, for code that treats those of every device alike: copies, and the streams that they are in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def to_gpu(flat: torch.Tensor) -> torch.Tensor:
    """Return a copy on the current GPU, good in any stream; the tensor itself where there is none."""
    return flat.cuda() if torch.cuda.is_available() else flat


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a new tensor on the current GPU; on the CPU where there is none."""
    return torch.empty(shape, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")


def take_over(flat: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a link as if it had been made here: on the current device, in the current stream."""
    if not flat.is_cuda:
        return flat
    flat.record_stream(torch.cuda.current_stream(flat.device))  # it was made in the link's
    return flat if flat.device.index == torch.cuda.current_device() else flat.cuda()


def mark(tensor: torch.Tensor) -> Any:
    """Return the point that the current stream has reached on a tensor's GPU; None for a tensor of the CPU."""
    return torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None


@contextlib.contextmanager
def settled_after(mark: Any, tensor: torch.Tensor) -> Iterator[None]:
    """Let the block write to a tensor after its ``mark``, and wait for that: any stream may read it then."""
    if mark is None:
        yield
        return
    stream = torch.cuda.current_stream(tensor.device)
    stream.wait_event(mark)
    yield
    stream.synchronize()
