"""What the options of a syncer mean."""

from __future__ import annotations

from typing import Final

import torch

from rlinf_async.errors import ConfigError
from rlinf_async.weights.model.manifest import dtype_of

_PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


def device_of(name: str | torch.device) -> torch.device:
    """That device; the CPU where there is no GPU, so that a configuration need not be changed to run there."""
    device = torch.device(name)
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


def precision_of(name: str | torch.dtype | None) -> torch.dtype | None:
    """``"bf16"`` or ``"bfloat16"`` → ``torch.bfloat16``.

    Raises:
        ConfigError: there is none of that name, or it is no floating-point dtype.
    """
    if name is None:
        return None
    try:
        dtype = name if isinstance(name, torch.dtype) else dtype_of(_PRECISIONS.get(name.lower(), name.lower()))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not dtype.is_floating_point:
        raise ConfigError(f"weights are cast to a floating-point dtype; got {dtype}")
    return dtype
