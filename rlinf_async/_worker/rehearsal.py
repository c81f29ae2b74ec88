"""CPU in place of accelerators that are only declared (``fake_gpus``): hides CUDA, fakes the torch platform."""

from __future__ import annotations

from typing import Any

import torch


def hide_devices() -> None:
    """From here on torch sees no GPU in this process, though the machine may have some of the declared numbers."""
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0
    torch.cuda._lazy_init = _refuse


def _refuse() -> None:
    raise RuntimeError(
        "No CUDA GPUs are available: this node only declares its devices (fake_gpus), so tensors live on the CPU"
    )


class RehearsedPlatform:
    """``Worker.torch_platform`` in a rehearsal: the CPU, which takes what is said to an accelerator.

    What ``torch.cpu`` has is ``torch.cpu``'s (``set_device``, ``current_device``, ``synchronize``, streams); memory is
    neither counted nor cached.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def empty_cache(self) -> None: ...

    def ipc_collect(self) -> None: ...

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...

    def memory_allocated(self, device: Any = None) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed
