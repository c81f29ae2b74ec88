"""Tensor helpers for ``send_tensor`` and ``recv_tensor``: metadata and its check, flat bytes, copy into a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async._transports.devices.gpu_tensors import settled_after
from rlinf_async._transports.shared_memory import SharedSegment

TensorFacts = Sequence[Any]


def is_tensor(value: Any) -> bool:
    """True for a tensor with plain strided memory, which is neither sparse nor quantised."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized


def describe(tensor: torch.Tensor) -> list[Any]:
    """Return the properties that a receiver's tensor must match."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type]


def difference(sent: TensorFacts, wanted: TensorFacts) -> str | None:
    """Return the reason why a tensor cannot be received into another tensor; None if it can.

    The device type must match as well, because both sides must agree on a transfer between different types of device.
    """
    for name, sent_value, own_value in zip(("dtype", "shape", "device"), sent, wanted, strict=True):
        if sent_value != own_value:
            sent_value, own_value = (
                tuple(value) if isinstance(value, list) else value for value in (sent_value, own_value)
            )
            return f"its {name} is {sent_value}, and the tensor to receive it has {own_value}"
    return None


def memory_of(tensor: torch.Tensor) -> memoryview:
    whole = tensor.detach().resolve_conj().resolve_neg()
    return _flat(whole if whole.device.type == "cpu" else whole.cpu())


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.detach().resolve_conj().resolve_neg()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def fill(tensor: torch.Tensor, content: bytes | memoryview | SharedSegment | torch.Tensor, after: Any = None) -> None:
    """Copy the bytes of a tensor of the same dtype and shape into this tensor, whatever its device and strides.

    The copy begins ``after`` a ``gpu_tensors.mark``, and is complete on return, so that any stream may read the tensor.
    """
    target = tensor.detach()
    if target.nbytes:
        with settled_after(after, target):
            _copy(target, content)


def _copy(target: torch.Tensor, content: bytes | memoryview | SharedSegment | torch.Tensor) -> None:
    if isinstance(content, torch.Tensor):
        target.copy_(content.view(target.dtype).view(target.shape))
        return
    if isinstance(content, SharedSegment) and target.device.type == "cpu" and target.is_contiguous():
        content.read_into(_flat(target))
        return
    memory = content.open() if isinstance(content, SharedSegment) else content
    if target.device.type == "cpu" and target.is_contiguous():
        _flat(target)[:] = memory
        return
    # Torch warns about read-only memory.
    writable = memory if isinstance(memory, memoryview) and not memory.readonly else bytearray(memory)
    target.copy_(torch.frombuffer(writable, dtype=target.dtype).view(target.shape))


def _flat(tensor: torch.Tensor) -> memoryview:
    if not tensor.nbytes:
        return memoryview(bytearray())
    flat = torch.empty(0, dtype=torch.uint8)
    offset = int(tensor.storage_offset()) * tensor.itemsize
    flat.set_(tensor.untyped_storage(), offset, (tensor.nbytes,), (1,))
    array: Any = flat.numpy()
    return memoryview(array)
