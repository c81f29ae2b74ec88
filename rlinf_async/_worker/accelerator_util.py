"""``AcceleratorUtil``: vendor-neutral queries about accelerators (devices, back end, torch module), and profiling."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async.hardware import FAMILIES, AcceleratorType, find_accelerators, get_family, is_rehearsal

# NCCL's default maximum cluster size, on devices that support clusters of thread blocks.
_DEFAULT_CLUSTER_SIZE = 4


class AcceleratorUtil:
    """Static methods that answer queries about a family of accelerators.

    ``accelerator_type`` is an ``AcceleratorType`` or its name; None means this process's family. In a rehearsal, whose
    devices are only declared, the back end is Gloo, the platform computes on the CPU and the device type is ``"cpu"``.
    """

    # Families whose workers exchange device memory through their collective back end; workers of other families use
    # Gloo.
    CCL_SUPPORT_LIST: ClassVar[list[str]] = [name for name, family in FAMILIES.items() if family.sends_directly]

    _window_is_open: ClassVar[bool] = False

    @staticmethod
    def get_accelerator_type() -> str:
        """Return the accelerator type of this worker's group, or of this machine outside workers; or ``"NO_ACCEL"``."""
        return os.environ.get("ACCELERATOR_TYPE") or find_accelerators(os.environ).type

    @staticmethod
    def get_accelerator_env_var(accelerator_type: str | None, visible_accelerators: Sequence[str]) -> dict[str, str]:
        """Return the variables that restrict a process to these devices; empty for ``"NO_ACCEL"``."""
        family = _family(accelerator_type)
        return family.get_variables([str(each) for each in visible_accelerators]) if family is not None else {}

    @staticmethod
    def get_visible_devices(accelerator_type: str | None = None) -> list[int | str]:
        """Return the devices visible in this process's environment: numbers, or UUIDs if the user gave UUIDs."""
        family = _family(accelerator_type)
        ids = family.read_variables(os.environ) if family is not None else []
        return [int(each) if each.isdecimal() else each for each in ids]

    @staticmethod
    def get_ccl_backend(accelerator_type: str | None = None) -> str:
        """Return the family's back end for ``torch.distributed``; ``"gloo"`` if there are no devices."""
        family = _family(accelerator_type)
        return "gloo" if family is None or is_rehearsal(os.environ) else family.collective_backend

    @staticmethod
    def get_ccl_socket_ifname_env_var(accelerator_type: str | None = None) -> str:
        """Return the name of the environment variable that selects the back end's network interface."""
        family = _family(accelerator_type)
        return "GLOO_SOCKET_IFNAME" if family is None or is_rehearsal(os.environ) else family.nic_variable

    @staticmethod
    def get_torch_platform(accelerator_type: str | None = None) -> Any:
        """Return the torch module of the devices, such as ``torch.cuda``; None if there are no devices.

        Raises:
            ImportError: this torch does not support the family; the vendor's extension is missing.
        """
        family = _family(accelerator_type)
        if family is None:
            return None
        if is_rehearsal(os.environ):
            from rlinf_async._worker.rehearsal import RehearsedPlatform

            return RehearsedPlatform()
        import torch

        if family.torch_extension is not None:
            importlib.import_module(family.torch_extension)
        platform = getattr(torch, family.torch_platform, None)
        if platform is None:
            raise ImportError(
                f"this torch ({torch.__version__}) has no torch.{family.torch_platform} for {family.type}"
            )
        # Every platform gets this method, so that callers need no check.
        if not hasattr(platform, "ipc_collect"):
            platform.ipc_collect = lambda: None
        return platform

    @staticmethod
    def get_device_type(accelerator_type: str | None = None) -> str | None:
        """Return the type for ``torch.device``, such as ``"cuda"`` or ``"xpu"``; None if there are no devices."""
        family = _family(accelerator_type)
        if family is None:
            return None
        return "cpu" if is_rehearsal(os.environ) else family.torch_platform

    @staticmethod
    def get_accel_pg_options(accelerator_type: str | None, options: CollectiveGroupOptions | None) -> Any:
        """Return ``pg_options`` for ``torch.distributed.new_group``; None if there are no options or the back end is
        not NCCL.

        The defaults are 4 thread blocks per cluster, and between 1 and 32 thread blocks in total.
        """
        if options is None or options.is_empty_options() or AcceleratorUtil.get_ccl_backend(accelerator_type) != "nccl":
            return None
        import torch.distributed

        if not torch.distributed.is_nccl_available():
            return None
        nccl = torch.distributed.ProcessGroupNCCL.Options()
        nccl.is_high_priority_stream = options.is_high_priority_stream
        size, most, least = options.accel_cluster_size, options.accel_max_ctas, options.accel_min_ctas
        nccl.config.cga_cluster_size = _DEFAULT_CLUSTER_SIZE if size is None else size
        nccl.config.max_ctas = 32 if most is None else most
        nccl.config.min_ctas = 1 if least is None else least
        return nccl

    @staticmethod
    def start_profiling(accelerator_type: str | None = None, step_idx: int | None = None) -> None:
        """Open the capture window of a profiler that was started with ``capture-range=cudaProfilerApi``."""
        AcceleratorUtil._window_is_open = True
        if (profiler := _profiler(accelerator_type)) is not None:
            profiler.start()

    @staticmethod
    def stop_profiling(accelerator_type: str | None = None) -> None:
        """Close the capture window."""
        AcceleratorUtil._window_is_open = False
        if (profiler := _profiler(accelerator_type)) is not None:
            profiler.stop()

    @staticmethod
    @contextlib.contextmanager
    def profiling_range(
        accelerator_type: str | None, label: str, color: str | None = None, domain: str | None = None
    ) -> Iterator[None]:
        """Mark a named range in the profile; torch ignores the colour and the domain."""
        del color, domain
        if not AcceleratorUtil._window_is_open or _profiler(accelerator_type) is None:
            yield
            return
        nvtx = AcceleratorUtil.get_torch_platform(accelerator_type).nvtx
        nvtx.range_push(label)
        try:
            yield
        finally:
            nvtx.range_pop()


def _family(accelerator_type: str | None) -> Any:
    return get_family(AcceleratorUtil.get_accelerator_type() if accelerator_type is None else accelerator_type)


def _profiler(accelerator_type: str | None) -> Any:
    family = _family(accelerator_type)
    if family is None or is_rehearsal(os.environ) or family.type != AcceleratorType.NV_GPU:
        return None
    platform = AcceleratorUtil.get_torch_platform(accelerator_type)
    return platform.profiler if platform.is_available() else None
