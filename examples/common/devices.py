"""Choice of a worker's compute device."""

from __future__ import annotations

import torch

from rlinf_async.errors import ConfigError


def pick_device(setting: str) -> torch.device:
    """Resolve ``"cpu"``, ``"cuda"``, or ``"auto"``, which is a GPU if the worker has one.

    Raises:
        ConfigError: the setting is ``"cuda"``, and the worker has no GPU.
    """
    has_gpu = torch.cuda.is_available()
    if setting == "cuda" and not has_gpu:
        raise ConfigError("device: cuda was asked for, and this worker sees no GPU; use auto or cpu")
    return torch.device("cuda" if has_gpu and setting != "cpu" else "cpu")
