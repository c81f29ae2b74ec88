"""The device that a worker computes on."""

from __future__ import annotations

import torch

from rlinf_async.errors import ConfigError


def pick_device(wish: str) -> torch.device:
    """``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if the worker was given one.

    Raises:
        ConfigError: ``"cuda"`` where the worker has no GPU.
    """
    has_gpu = torch.cuda.is_available()
    if wish == "cuda" and not has_gpu:
        raise ConfigError("device: cuda was asked for, and this worker sees no GPU; use auto or cpu")
    return torch.device("cuda" if has_gpu and wish != "cpu" else "cpu")
