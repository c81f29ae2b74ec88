"""Uses the CPU as a stand-in for declared accelerators (``fake_gpus``): hides CUDA, fakes the torch platform."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from rlinf_async._core import dialect

_CPU: Final = torch.device("cpu")
_FSDP: Final = "torch.distributed.fsdp.fully_sharded_data_parallel"


def hide_devices() -> None:
    """Hide all GPUs from torch in this process from now on.

    Calls that return nothing, such as ``torch.cuda.synchronize()``, are accepted, and FSDP uses the CPU instead of the
    named devices. An RLinf program gets the CPU for every CUDA device.
    """
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0
    torch.cuda._lazy_init = _refuse
    platform = RehearsedPlatform()
    for name in ("synchronize", "empty_cache", "ipc_collect", "set_device", "mem_get_info", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, getattr(platform, name))
    torch.cuda.current_device = lambda: 0
    setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)  # noqa: B010
    setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)  # noqa: B010
    if dialect.is_rlinf:
        _CpuForCuda().__enter__()  # type: ignore[no-untyped-call]  # torch's
        setattr(torch, "Generator", _Generator)  # noqa: B010
        setattr(threading.Thread, "run", _on_cpu(threading.Thread.run))  # noqa: B010
        parse = torch._C._nn._parse_to  # Module.to uses it
        setattr(torch._C._nn, "_parse_to", lambda *args, **kwargs: parse(*map(_device, args), **_devices(kwargs)))  # noqa: B010
    if _FSDP in sys.modules:  # FSDP was preloaded
        _have_fsdp_on_cpu(sys.modules[_FSDP])
    else:
        sys.meta_path.insert(0, _FsdpOnCpu())


class _CpuForCuda(TorchFunctionMode):
    """A torch function mode that replaces ``"cuda"``, ``"cuda:0"`` and 0 with the CPU, on the thread that enters it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        takes_device = func is torch.Tensor.to
        args = [_device(value) if takes_device or type(value) is not int else value for value in args]
        return func(*args, **_devices(kwargs or {}))


class _Generator(torch.Generator):
    """A CPU generator for any device; needed because torch does not pass the constructor to a function mode."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, _device(device))  # type: ignore[call-arg]  # torch declares __init__


def _on_cpu(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(run)
    def with_mode(thread: threading.Thread) -> None:
        with _CpuForCuda():  # a mode applies to one thread
            run(thread)

    return with_mode


def _devices(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": _device(kwargs["device"])} if "device" in kwargs else kwargs


def _device(value: Any) -> Any:
    if type(value) is torch.device:
        return _CPU if value.type == "cuda" else value
    is_cuda = type(value) is int or (type(value) is str and value.partition(":")[0] == "cuda")
    return "cpu" if is_cuda else value


class _FsdpOnCpu(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that makes FSDP1 ignore ``device_id`` and use the CPU; most workers never import FSDP1."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _FSDP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)  # type: ignore[union-attr]  # a module with a file has a loader
        _have_fsdp_on_cpu(module)


def _have_fsdp_on_cpu(module: Any) -> None:
    from torch.distributed.fsdp import _init_utils

    make = module.FullyShardedDataParallel.__init__

    @functools.wraps(make)
    def on_cpu(*args: Any, **kwargs: Any) -> None:
        make(*args, **{**kwargs, "device_id": torch.device("cpu")})

    module.FullyShardedDataParallel.__init__ = on_cpu
    # sync_module_states refuses CPU tensors, which NCCL cannot broadcast; Gloo can.
    setattr(_init_utils, "_check_module_states_for_sync_module_states", lambda *states: None)  # noqa: B010


def _refuse() -> None:
    raise RuntimeError(
        "No CUDA GPUs are available: this node only declares its devices (fake_gpus), so tensors live on the CPU"
    )


class _RehearsedStream(contextlib.nullcontext[None]):
    """A stream that is always idle; also the context manager of ``with platform.stream(...)``."""

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        event = event or _RehearsedEvent()
        event.record()
        return event

    def query(self) -> bool:
        return True


class _RehearsedEvent:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.monotonic()

    def wait(self, stream: Any = None) -> None: ...

    synchronize = wait

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _RehearsedEvent) -> float:
        return 1e3 * (end._at - self._at)


class RehearsedPlatform:
    """``Worker.torch_platform`` in a rehearsal: the CPU, with the interface of an accelerator.

    It forwards to ``torch.cpu`` (``synchronize``), except for streams and events, because ``torch.cpu`` lacks most of
    their methods; memory is neither counted nor cached.
    """

    Event = _RehearsedEvent

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def Stream(self, *args: Any, **kwargs: Any) -> _RehearsedStream:  # named after torch.cuda's class
        return _RehearsedStream()

    def stream(self, stream: Any) -> _RehearsedStream:
        return _RehearsedStream()

    current_stream = default_stream = Stream

    def empty_cache(self) -> None: ...

    def ipc_collect(self) -> None: ...

    def current_device(self) -> Any:
        # RLinf programs get a number, as for an accelerator, because torch.device(type, index) does not accept a name
        # as the index.
        return 0 if dialect.is_rlinf else torch.cpu.current_device()

    def set_device(self, device: Any) -> None: ...

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...

    def memory_allocated(self, device: Any = None) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)
