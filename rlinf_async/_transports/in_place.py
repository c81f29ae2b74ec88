"""Tensor helpers of ``send_tensor`` and ``recv_tensor``: metadata and its check, flat bytes, copy into a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async._transports.devices.gpu_tensors import settled_after
from rlinf_async._transports.shared_memory import Segment

TensorFacts = Sequence[Any]
"""``[dtype, shape, type of device]`` as plain data."""


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor with memory of its own shape, not a sparse or quantised one."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized


def describe(tensor: torch.Tensor) -> list[Any]:
    """What a receiver's tensor has to be like."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type]


def difference(sent: TensorFacts, wanted: TensorFacts) -> str | None:
    """Why a tensor cannot be received in the place of another one; None if it can.

    What was sent from a CUDA device can be received on another type of device only where that was agreed, so the type
    counts too.
    """
    for name, theirs, ours in zip(("dtype", "shape", "device"), sent, wanted, strict=True):
        if theirs != ours:
            theirs, ours = (tuple(value) if isinstance(value, list) else value for value in (theirs, ours))
            return f"its {name} is {theirs}, and the tensor to receive it has {ours}"
    return None


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor: its own memory on the CPU, a copy of other memory."""
    whole = tensor.detach().resolve_conj().resolve_neg()
    return _flat(whole if whole.device.type == "cpu" else whole.cpu())


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, where they are."""
    whole = tensor.detach().resolve_conj().resolve_neg()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def fill(tensor: torch.Tensor, content: bytes | memoryview | Segment | torch.Tensor, after: Any = None) -> None:
    """Copies the bytes of a tensor of the same dtype and shape into this one, wherever and however it is laid out.

    It is done at the end: the bytes can be read in any stream.

    Args:
        after: what ``gpu_tensors.mark`` has returned for this tensor.
    """
    target = tensor.detach()
    if target.nbytes:
        with settled_after(after, target):
            _copy(target, content)


def _copy(target: torch.Tensor, content: bytes | memoryview | Segment | torch.Tensor) -> None:
    if isinstance(content, torch.Tensor):
        target.copy_(content.view(target.dtype).view(target.shape))
        return
    if isinstance(content, Segment) and target.device.type == "cpu" and target.is_contiguous():
        content.read_into(_flat(target))
        return
    memory = content.open() if isinstance(content, Segment) else content
    if target.device.type == "cpu" and target.is_contiguous():
        _flat(target)[:] = memory
        return
    writable = memory if isinstance(memory, memoryview) and not memory.readonly else bytearray(memory)  # or torch warns
    target.copy_(torch.frombuffer(writable, dtype=target.dtype).view(target.shape))


def _flat(tensor: torch.Tensor) -> memoryview:
    if not tensor.nbytes:
        return memoryview(bytearray())
    flat = torch.empty(0, dtype=torch.uint8)
    offset = int(tensor.storage_offset()) * tensor.itemsize
    flat.set_(tensor.untyped_storage(), offset, (tensor.nbytes,), (1,))
    array: Any = flat.numpy()
    return memoryview(array)
