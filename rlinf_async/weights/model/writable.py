"""Whether a tensor can be written to at all, which is known before anything is written."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy


def why_unwritable(tensor: torch.Tensor, *, replaced: bool = False) -> str | None:
    """What is in the way, and what to do about it; None if nothing is.

    Args:
        replaced: other memory takes the place of its own, which is not written to.
    """
    if is_lazy(tensor):
        return "is not initialised here: run the model once, which gives lazy layers their shapes"
    if tensor.is_meta:
        return "is on the meta device here and has no memory: give it some, by to_empty() of its module"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return f"is {tensor.layout} here, and only dense tensors can be written: make it dense"
    if hasattr(tensor, "to_local"):
        return "is a DTensor here: give the receiver a model that is whole, or send by calls"
    if tensor.is_inference():
        return "was made under torch.inference_mode() here: make the model outside of it, or copy.deepcopy() it there"
    if not replaced and any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return "is an expanded tensor here, whose elements share memory: clone() it"
    return None
