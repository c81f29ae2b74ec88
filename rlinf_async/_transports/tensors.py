"""Pickles and rebuilds torch tensors; their memory is sent out of band instead of being copied into the pickle.

The codec calls ``reduce`` for objects of torch's own types. Dense tensors in CPU or CUDA memory become a shape and a
*region*, the range of memory that they cover. All other tensors (sparse, quantised, with grad, and so on) use torch's
pickling, at the cost of some copies. Tensors that cover the same region still share it on the other side, so tied
weights stay tied; parts of a larger storage are sent separately.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any, Final

import numpy
import torch

from rlinf_async._core.codec import KEEP
from rlinf_async._core.encoded import OutOfBandBytes
from rlinf_async._transports.devices import gpu_tensors

ALONE: Final = torch.Tensor
"""Exact type of the objects that the codec offers to ``alone``."""

_DEVICES: Final = frozenset({"cpu", "cuda"})


class _Region:
    """The memory that tensors cover, pickled only once for all of them; kept on its GPU if ``keep`` accepts it."""

    def __init__(self, owner: torch.Tensor, keep: Callable[[Any], bool] | None) -> None:
        self._on_cuda = owner.is_cuda
        self._is_kept = keep is not None and keep(owner)
        # The view keeps the storage alive, so the address, which is the region's key, cannot be reused.
        if owner.is_contiguous():
            self._bytes = owner.as_strided((owner.numel(),), (1,)).view(torch.uint8)
            return
        offset = int(owner.storage_offset()) * owner.itemsize
        flat = torch.empty(0, dtype=torch.uint8, device=owner.device)
        self._bytes = flat.set_(owner.untyped_storage(), offset, (owner.nbytes,), (1,))

    def __reduce__(self) -> tuple[Any, ...]:
        memory: Any = OutOfBandBytes(self._bytes) if self._is_kept else self._bytes.cpu().numpy()
        return _rebuild_region, (pickle.PickleBuffer(memory), self._on_cuda)


def reduce(obj: Any, state: dict[Any, Any]) -> Any:
    """Return the result of ``__reduce__`` without copying CPU memory; NotImplemented if torch should pickle the object.

    A dense tensor keeps its strides (channels last, transposed); any other tensor arrives contiguous. A CUDA tensor
    arrives on the receiver's current CUDA device, or on the CPU if there is none; it travels through CPU memory unless
    kept (``codec.KEEP``). A received tensor is writable, but cannot be enlarged.
    """
    if type(obj) is not torch.Tensor or not _is_simple(obj):
        return NotImplemented
    if not obj.numel():
        return _rebuild_empty, (tuple(obj.shape), obj.dtype, obj.is_cuda)
    tensor = obj if _is_dense(obj) else obj.contiguous()
    key = (tensor.device, tensor.data_ptr(), tensor.nbytes)
    region = state.get(key)
    if region is None:
        region = state[key] = _Region(tensor, state.get(KEEP))
    return _rebuild_tensor, (region, tensor.dtype, tuple(tensor.shape), tensor.stride())


def alone(obj: Any) -> tuple[Any, memoryview] | None:
    """Split a contiguous tensor that numpy accepts into a description and its memory; None for any other object.

    numpy refuses memory that is not dense or not on the CPU, and tensors that require grad, so one call replaces ten
    checks.
    """
    try:
        array = obj.numpy()
    except (TypeError, RuntimeError):
        return None
    if obj.__dict__ or not array.size or not array.flags.c_contiguous:
        return None
    return (array.dtype.str, array.shape, array.strides), memoryview(array.reshape(-1).view(numpy.uint8))


def rebuilder(key: Any) -> Callable[[Any], torch.Tensor]:
    """Return the inverse of ``alone``: a function that creates a tensor from memory and takes ownership of it."""
    name, shape, strides = key
    none = numpy.empty(0, name)
    dtype = torch.from_numpy(none).dtype
    steps = [stride // none.itemsize for stride in strides]
    if steps != [math.prod(shape[place + 1 :]) for place in range(len(shape))]:
        return lambda memory: torch.frombuffer(memory, dtype=dtype).as_strided(shape, steps)
    if len(shape) == 1:
        return lambda memory: torch.frombuffer(memory, dtype=dtype)
    return lambda memory: torch.frombuffer(memory, dtype=dtype).view(shape)


def _is_simple(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type in _DEVICES
        and not (
            tensor.requires_grad
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.__dict__
        )
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """True if the tensor covers a range of memory without gaps or overlaps, in any order of its dimensions."""
    if tensor.is_contiguous():
        return True
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).is_contiguous()


def _rebuild_region(buffer: Any, on_gpu: bool) -> torch.Tensor:
    if isinstance(buffer, torch.Tensor):
        return gpu_tensors.take_over(buffer)
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    return gpu_tensors.to_gpu(flat) if on_gpu else flat


def _rebuild_tensor(
    region: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return region.view(dtype).as_strided(shape, stride)


def _rebuild_empty(shape: tuple[int, ...], dtype: torch.dtype, on_gpu: bool) -> torch.Tensor:
    return gpu_tensors.empty(shape, dtype) if on_gpu else torch.empty(shape, dtype=dtype)
