"""Stands in for the GPUs of a process where there are none: memory of the CPU that counts as one's."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rlinf_async._transports.devices.device_memory import IpcHandle
from rlinf_async.weights.memory.gpus import Marks
from tests._support.weight_parts import Cuda, copy_tensors

GPU = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    is_cuda = True
    device = GPU


class FakeGpus:
    """One GPU; what is exported is opened by other processes too.

    Args:
        refuses: methods that raise.
        name: of the GPU.
        limit: pieces of memory that it has.

    Attributes:
        calls: name and facts of what was done, in order.
        registered: address → bytes and whether for reading only.
        room: addresses and descriptors of what is allocated.
        opened: how often each handle is open.
    """

    def __init__(self, *refuses: str, name: str = "one GPU", limit: int = 100) -> None:
        self.limit = limit
        self.refuses = set(refuses)
        self.name = name
        self.calls: list[tuple[Any, ...]] = []
        self.registered: dict[int, tuple[int, bool]] = {}
        self.room: dict[int, int] = {}
        self.opened: dict[bytes, int] = {}
        self._on_gpu: dict[int, Any] = {}
        self._at: dict[bytes, list[int]] = {}

    def put(self, weights: Any) -> Any:
        """These tensors are on the GPU from now on."""
        for tensor in weights.values() if isinstance(weights, dict) else weights.state_dict(keep_vars=True).values():
            self._on_gpu[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return weights

    def done(self, name: str) -> list[tuple[Any, ...]]:
        return [facts for what, *facts in self.calls if what == name]  # type: ignore[misc]

    def _do(self, name: str, *facts: Any) -> None:
        assert asyncio._get_running_loop() is None, f"{name} holds up an event loop"
        self.calls.append((name, *facts))
        if name in self.refuses:
            raise RuntimeError(f"{name} is refused")

    # -- as Gpus ------------------------------------------------------------------------------------------------

    def places(self, tensors: Iterable[torch.Tensor]) -> set[torch.device]:
        return {GPU for tensor in tensors if tensor.untyped_storage().data_ptr() in self._on_gpu}

    def only_place(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        return GPU if tensors and all(self.places([tensor]) for tensor in tensors) else None

    def mark(self, devices: Iterable[torch.device]) -> Marks:
        return dict.fromkeys(devices, "mark")

    def copy(
        self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], after: Marks | None = None
    ) -> None:
        ways = {(bool(self.places([to])), bool(self.places([of]))) for to, of in zip(targets, sources, strict=True)}
        names = {(True, True): "D2D", (True, False): "H2D", (False, True): "D2H", (False, False): "H2H"}
        if not ways:
            return
        self._do("copy", "+".join(sorted(names[way] for way in ways)), dict(after or {}))
        copy_tensors(targets, sources)

    def follow(self, marks: Marks) -> None:
        self._do("follow", dict(marks))

    def settle(self, device: torch.device) -> None:
        self._do("settle")

    def register(self, address: int, nbytes: int, device: torch.device, *, read_only: bool) -> None:
        self._do("register")
        assert _is_mapped(address)
        assert address not in self.registered
        self.registered[address] = nbytes, read_only

    def unregister(self, address: int, device: torch.device) -> None:
        assert _is_mapped(address), "it was unmapped before CUDA was told"
        del self.registered[address]

    def uuid(self, device: torch.device) -> str:
        return self.name

    def allocate(self, nbytes: int, device: torch.device) -> torch.Tensor:
        self._do("allocate", nbytes)
        if len(self.room) == self.limit:
            raise RuntimeError("there is no memory left")
        fd = os.memfd_create("stands in for a GPU's memory", os.MFD_CLOEXEC)
        os.truncate(fd, nbytes)
        memory = _map(fd, nbytes)
        self.put({"": memory})
        self.room[memory.data_ptr()] = fd
        return memory

    def free(self, memory: torch.Tensor) -> None:
        """Whoever still looks at it sees that."""
        self.calls.append(("free",))
        memory.fill_(0xDD)
        os.close(self.room.pop(memory.data_ptr()))
        del self._on_gpu[memory.data_ptr()]

    def export(self, memory: torch.Tensor) -> IpcHandle:
        self._do("export")
        path = f"/proc/{os.getpid()}/fd/{self.room[memory.data_ptr()]}"
        return IpcHandle(path.encode(), 0, memory.nbytes)

    def open(self, handle: IpcHandle, device: torch.device) -> torch.Tensor:
        self._do("open")
        fd = os.open(handle.allocation, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = _map(fd, handle.nbytes)
        finally:
            os.close(fd)
        self._on_gpu[memory.data_ptr()] = None  # who opens it says when nothing looks at it any more
        self.opened[handle.allocation] = self.opened.get(handle.allocation, 0) + 1
        self._at.setdefault(handle.allocation, []).append(memory.data_ptr())
        return memory

    def shut(self, handle: IpcHandle, device: torch.device) -> None:
        self.opened[handle.allocation] -= 1
        del self._on_gpu[self._at[handle.allocation].pop()]


class NoGpus:
    """Of a process that does not use CUDA: nothing may be asked of it but where tensors are."""

    def put(self, weights: Any) -> Any:
        """They stay where they are."""
        return weights

    def only_place(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        return None

    def places(self, tensors: Iterable[torch.Tensor]) -> set[torch.device]:
        return set()

    def mark(self, devices: Iterable[torch.device]) -> Marks:
        assert not list(devices)
        return {}

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} brings CUDA up")


class OnCuda(Cuda):
    """A real GPU, for roles that are also played on one that is not."""

    def put(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.cuda() for name, tensor in weights.items()}


def _map(fd: int, nbytes: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)


def _is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as file:
        ranges = [line.split(maxsplit=1)[0].split("-") for line in file]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)
