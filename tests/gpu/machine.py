"""Step a: what the kernel and CUDA have of the means on which the package relies, with figures."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import multiprocessing
import os
import platform
import select
import shutil
import signal
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from rlinf_async._transports.devices.device_memory import CudaMemory, IpcHandle, cuda_runtime, forget_error
from tests.gpu.step import Skip, Step, main

MiB = 1 << 20
SIZE = 512 * MiB
"""Bytes of the copies that are measured."""

_cuda: Any = torch.cuda


# -- the kernel --------------------------------------------------------------------------------------------------------


def check_machine(step: Step) -> str:
    step.say("kernel", platform.release())
    step.say("Python", platform.python_version())
    step.say("torch", f"{torch.__version__}, CUDA {torch.version.cuda}")
    step.say("processors", os.cpu_count())
    step.say("/dev/shm", shutil.disk_usage("/dev/shm").total >> 20, "MiB")
    lacking = [name for name in ("ssh", "sshd", "ip", "nsenter", "make", "gcc") if shutil.which(name) is None]
    return f"lacks {', '.join(lacking) or 'nothing'}"


def check_boot_id(step: Step) -> None:
    assert len(Path("/proc/sys/kernel/random/boot_id").read_text().strip()) == 36


def check_memfd_seals(step: Step) -> None:
    with memfd(mmap.PAGESIZE) as fd:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        with contextlib.suppress(PermissionError):
            os.ftruncate(fd, 0)
            raise AssertionError("a sealed memfd was cut")


def check_memfd_future_write_seal(step: Step) -> None:
    with memfd(mmap.PAGESIZE) as fd:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x0010)  # F_SEAL_FUTURE_WRITE


def check_file_leases(step: Step) -> None:
    with memfd(mmap.PAGESIZE) as fd:
        other = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        os.close(other)
    path = Path("/tmp") / f"rlinf-lease-{os.getpid()}"
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    finally:
        os.close(fd)
        path.unlink()


def check_ofd_locks(step: Step) -> None:
    with memfd(mmap.PAGESIZE) as fd:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        try:
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        except (BlockingIOError, PermissionError):
            return
        finally:
            os.close(other)
        raise AssertionError("two owners have the lock")


def check_subreaper(step: Step) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(36, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    assert libc.prctl(36, 0, 0, 0, 0) == 0


def check_pidfd(step: Step) -> None:
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    fd = os.pidfd_open(child)
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    assert select.select([fd], [], [], 5)[0], "the death of a process does not make its pidfd readable"
    os.waitpid(child, 0)
    os.close(fd)


def check_epollexclusive(step: Step) -> None:
    read, write = os.pipe()
    with select.epoll() as epoll:
        epoll.register(read, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        os.write(write, b"x")
        assert epoll.poll(5)
    os.close(read)
    os.close(write)


def check_abstract_and_seqpacket_sockets(step: Step) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        with one, other, memfd(mmap.PAGESIZE) as fd:
            socket.send_fds(one, [b"x"], [fd])
            _, fds, _, _ = socket.recv_fds(other, 1, 1)
            os.close(fds[0])


@contextlib.contextmanager
def memfd(nbytes: int) -> Iterator[int]:
    fd = os.memfd_create("rlinf-gpu-proof", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        yield fd
    finally:
        os.close(fd)


# -- CUDA in one process -----------------------------------------------------------------------------------------------


def need_gpu() -> torch.device:
    if not torch.cuda.device_count():
        raise Skip("no GPU")
    return torch.device("cuda", 0)


def check_gpu(step: Step) -> str:
    began = time.perf_counter()
    device = need_gpu()
    torch.zeros(1, device=device)
    step.say("CUDA comes up", time.perf_counter() - began, "s")
    properties = _cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info()
    step.say("memory of the GPU", total >> 20, "MiB")
    step.say("free memory of the GPU", free >> 20, "MiB")
    step.say("GPUs", torch.cuda.device_count())
    return str(properties.name)


def check_symbols_of_the_runtime_that_torch_loaded(step: Step) -> str:
    need_gpu()
    lacking = []
    for name in ("cudaHostRegister", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle", "cudaMalloc", "cudaGetLastError"):
        try:
            getattr(cuda_runtime(), name)
        except AttributeError:
            lacking.append(name)
    assert not lacking, f"ctypes.CDLL(None) does not have {lacking}"
    version = ctypes.c_int()
    assert cuda_runtime().cudaRuntimeGetVersion(ctypes.byref(version)) == 0
    return str(version.value)


def rate(copy: Callable[[], object], nbytes: int = SIZE, count: int = 5) -> float:
    """Return GB/s of the median copy."""
    copy()
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return nbytes / sorted(times)[count // 2] / 1e9


def check_copies_of_cuda(step: Step) -> None:
    device = need_gpu()
    on_gpu, other = (torch.ones(SIZE, dtype=torch.uint8, device=device) for _ in range(2))
    pageable = torch.ones(SIZE, dtype=torch.uint8)
    began = time.perf_counter()
    pinned = torch.ones(SIZE, dtype=torch.uint8, pin_memory=True)
    step.say("512 MiB of pinned memory are made", time.perf_counter() - began, "s")
    step.say("device to device", rate(lambda: other.copy_(on_gpu)), "GB/s")
    step.say("device to pageable memory", rate(lambda: pageable.copy_(on_gpu)), "GB/s")
    step.say("pageable memory to device", rate(lambda: on_gpu.copy_(pageable)), "GB/s")
    step.say("device to pinned memory", rate(lambda: pinned.copy_(on_gpu, non_blocking=True)), "GB/s")
    step.say("pinned memory to device", rate(lambda: on_gpu.copy_(pinned, non_blocking=True)), "GB/s")


def register(mapped: torch.Tensor, flags: int) -> int:
    status = int(
        cuda_runtime().cudaHostRegister(
            ctypes.c_void_p(mapped.data_ptr()), ctypes.c_size_t(mapped.nbytes), ctypes.c_uint(flags)
        )
    )
    forget_error()
    return status


def unregister(mapped: torch.Tensor) -> None:
    assert cuda_runtime().cudaHostUnregister(ctypes.c_void_p(mapped.data_ptr())) == 0


def mapped_memfd(fd: int, protection: int) -> torch.Tensor:
    memory = mmap.mmap(fd, SIZE, mmap.MAP_SHARED, protection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(memory, dtype=torch.uint8)


def check_a_sealed_memfd_is_registered_for_writing(step: Step) -> None:
    device = need_gpu()
    on_gpu = torch.full((SIZE,), 7, dtype=torch.uint8, device=device)
    with memfd(SIZE) as fd:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        mapped = mapped_memfd(fd, mmap.PROT_READ | mmap.PROT_WRITE)
        mapped.fill_(1)
        step.say("device to a mapped memfd, unregistered", rate(lambda: mapped.copy_(on_gpu)), "GB/s")
        began = time.perf_counter()
        status = register(mapped, 1)
        step.say("512 MiB of a memfd are registered", time.perf_counter() - began, "s")
        assert status == 0, f"cudaHostRegister: {status}"
        step.say("device to a registered memfd", rate(lambda: mapped.copy_(on_gpu, non_blocking=True)), "GB/s")
        step.say("a registered memfd to device", rate(lambda: on_gpu.copy_(mapped, non_blocking=True)), "GB/s")
        assert bool((mapped == 7).all())
        began = time.perf_counter()
        unregister(mapped)
        step.say("512 MiB of a memfd are unregistered", time.perf_counter() - began, "s")


def check_a_memfd_mapped_for_reading_is_registered(step: Step) -> str:
    device = need_gpu()
    on_gpu = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    told = []
    with memfd(SIZE) as fd:
        mapped_memfd(fd, mmap.PROT_READ | mmap.PROT_WRITE).fill_(3)
        for name, flags in (("read-only flag", 9), ("portable flag alone", 1)):
            mapped = mapped_memfd(fd, mmap.PROT_READ)
            status = register(mapped, flags)
            told.append(f"{name}: {status}")
            if status == 0:
                speed = rate(lambda mapped=mapped: on_gpu.copy_(mapped, non_blocking=True))
                step.say(f"memfd mapped for reading, registered with the {name}, to device", speed, "GB/s")
                unregister(mapped)
    return ", ".join(told)


def check_a_fresh_thread_exports_memory(step: Step) -> None:
    device = need_gpu()
    tensor = torch.ones(4 * MiB, dtype=torch.uint8, device=device)[MiB:]
    found: list[Any] = []

    def export() -> None:
        try:
            found.append(CudaMemory().export(tensor))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=export)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    assert found[0].offset >= MiB


def check_foreach_copies_of_unequal_dtypes(step: Step) -> None:
    device = need_gpu()
    sources = [torch.ones(16 * MiB, dtype=torch.bfloat16, device=device) for _ in range(16)]
    targets = [torch.empty_like(each) for each in sources]
    nbytes = sum(each.nbytes for each in sources)
    step.say("foreach copies, bf16 to bf16", rate(lambda: torch._foreach_copy_(targets, sources), nbytes), "GB/s")
    casts = [torch.empty(16 * MiB, dtype=torch.float32, device=device) for _ in range(16)]
    step.say("foreach copies, bf16 to float32", rate(lambda: torch._foreach_copy_(casts, sources), nbytes), "GB/s")
    pinned = [torch.empty(16 * MiB, dtype=torch.bfloat16, pin_memory=True) for _ in range(16)]
    copy = rate(lambda: torch._foreach_copy_(pinned, sources, non_blocking=True), nbytes)
    step.say("foreach copies, device to pinned memory", copy, "GB/s")


def check_an_error_that_was_forgotten_is_not_raised_later(step: Step) -> None:
    device = need_gpu()
    assert cuda_runtime().cudaHostUnregister(ctypes.c_void_p(mmap.PAGESIZE)) != 0
    forget_error()
    assert float(torch.ones(3, device=device).sum()) == 3


def check_peers_reach_each_other(step: Step) -> str:
    need_gpu()
    if torch.cuda.device_count() < 2:
        raise Skip("needs two GPUs")
    return str(torch.cuda.can_device_access_peer(0, 1))


# -- CUDA IPC ----------------------------------------------------------------------------------------------------------


def export_and_wait(pipe: Any, nbytes: int) -> None:
    """Process that has the memory."""
    memory = CudaMemory()
    tensor = torch.full((nbytes,), 5, dtype=torch.uint8, device="cuda")
    handle = memory.export(tensor)
    torch.cuda.synchronize()
    pipe.send(tuple(handle))
    pipe.recv()
    tensor.fill_(6)
    torch.cuda.synchronize()
    pipe.send(None)
    pipe.recv()


@contextlib.contextmanager
def exporter(nbytes: int) -> Iterator[tuple[Any, Any, IpcHandle]]:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=export_and_wait, args=(far, nbytes), daemon=True)
    process.start()
    far.close()
    handle = IpcHandle(*near.recv())
    try:
        yield process, near, handle
    finally:
        process.kill()
        process.join()


def check_ipc_between_processes(step: Step) -> None:
    device = need_gpu()
    memory = CudaMemory()
    with exporter(SIZE) as (_, pipe, handle):
        began = time.perf_counter()
        opened = memory.open(handle, device)
        step.say("a handle is opened", (time.perf_counter() - began) * 1e3, "ms")
        assert bool((opened == 5).all())
        pipe.send(None)
        pipe.recv()
        assert bool((opened == 6).all()), "what the exporter writes later is not seen"
        target = torch.empty_like(opened)
        step.say("device to device, out of another process", rate(functools.partial(target.copy_, opened)), "GB/s")
        del opened
        began = time.perf_counter()
        memory.close()
        step.say("a handle is closed", (time.perf_counter() - began) * 1e3, "ms")
        again = memory.open(handle, device)
        assert bool((again == 6).all()), "a handle that was closed cannot be opened again"
        other = CudaMemory()
        try:
            twice = other.open(handle, device)
            assert bool((twice == 6).all())
            step.say("a handle is opened twice in one process", "yes")
        except RuntimeError as error:
            step.say("a handle is opened twice in one process", f"no: {error}")
        del again
        memory.close()


def check_memory_of_a_killed_exporter(step: Step) -> str:
    device = need_gpu()
    memory = CudaMemory()
    with exporter(SIZE) as (process, _, handle):
        opened = memory.open(handle, device)
        before = torch.cuda.mem_get_info()[0]
        process.kill()
        process.join()
        time.sleep(0.5)
        readable = bool((opened == 5).all())
        held = torch.cuda.mem_get_info()[0] - before
        del opened
        memory.close()
        freed = torch.cuda.mem_get_info()[0] - before
        try:
            memory.open(handle, device)
            again = "opens again"
        except RuntimeError as error:
            again = f"does not open again ({str(error)[-30:]})"
    assert float(torch.ones(3, device=device).sum()) == 3, "CUDA is of no use any more"
    return (
        f"readable: {readable}; freed while open: {held >> 20} MiB, once closed: {freed >> 20} MiB; its handle {again}"
    )


CHECKS = [
    check_machine,
    check_boot_id,
    check_memfd_seals,
    check_memfd_future_write_seal,
    check_file_leases,
    check_ofd_locks,
    check_subreaper,
    check_pidfd,
    check_epollexclusive,
    check_abstract_and_seqpacket_sockets,
    check_gpu,
    check_symbols_of_the_runtime_that_torch_loaded,
    check_copies_of_cuda,
    check_a_sealed_memfd_is_registered_for_writing,
    check_a_memfd_mapped_for_reading_is_registered,
    check_a_fresh_thread_exports_memory,
    check_foreach_copies_of_unequal_dtypes,
    check_an_error_that_was_forgotten_is_not_raised_later,
    check_peers_reach_each_other,
    check_ipc_between_processes,
    check_memory_of_a_killed_exporter,
]

if __name__ == "__main__":
    main("a", CHECKS)
