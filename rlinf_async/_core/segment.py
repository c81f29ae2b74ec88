"""Sealed shared-memory segments (memfd): allocates, writes, seals and maps them; duplicates and closes descriptors.

A segment has no name in any file system (Linux). It is a file descriptor, and the kernel frees the memory when the last
descriptor and mapping of it are gone. One process writes a segment once, and others map it. Its size is sealed, so that
a peer cannot truncate it and thereby kill a process that has mapped it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Final

from rlinf_async._core.descriptors import limit_met
from rlinf_async.errors import SerializationError

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MAX_PARTS: Final = os.sysconf("SC_IOV_MAX")


def write_segment(parts: Iterable[bytes | bytearray | memoryview], nbytes: int, size: int | None = None) -> int:
    """Write the parts, flat and contiguous memory, into a new segment of ``nbytes`` or, if given, ``size`` bytes.

    Return the segment's file descriptor, which is not inherited; the caller closes it.

    Raises:
        MemoryError: this machine or this process's container is short of memory.
        OSError: the kernel refuses, for example because the process has reached its limit on open files.
    """
    try:
        fd = os.memfd_create("rlinf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _explain(error, nbytes) from error
    try:
        written = _write(fd, [memoryview(part) for part in parts])
        if written != nbytes:
            raise ValueError(f"the parts of a segment of {nbytes} bytes have {written}")
        if size is not None and size > nbytes:
            os.posix_fallocate(fd, nbytes, size - nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        raise _explain(error, nbytes) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def allocate_segment(nbytes: int, name: str = "rlinf") -> int:
    """Return an empty segment, to be filled with ``os.pwrite`` and then sealed. Raises like ``write_segment``.

    The memory is reserved now, so that a shortage raises here, instead of killing the process with SIGBUS later.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _explain(error, nbytes) from error
    try:
        reserve_segment(fd, 0, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def reserve_segment(fd: int, offset: int, nbytes: int) -> None:
    """Allocate the memory for part of a segment. Raises like ``write_segment``."""
    try:
        if nbytes:
            os.posix_fallocate(fd, offset, nbytes)
    except OSError as error:
        raise _explain(error, nbytes) from error


def seal_segment(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def copy_fds(fds: Sequence[int]) -> list[int]:
    """Duplicate descriptors, either all or none; the caller closes the duplicates."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))
    except OSError as error:
        close_fds(copies)
        text = f"no descriptor is left for the arguments: {error.strerror}{limit_met(error)}"
        raise OSError(error.errno, text) from None
    return copies


def close_fds(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def map_private(fd: int, nbytes: int) -> memoryview:
    """Map the first ``nbytes`` bytes of a segment, copy on write: changes stay in this process.

    The mapping lives as long as the view and everything made from it. During that time it holds a duplicate of ``fd``,
    as every mmap does before Python 3.13; the caller keeps its own descriptor.

    Raises:
        SerializationError: the descriptor is not sealed memory, or it is smaller than the sender said.
        OSError: the system refuses the mapping.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise SerializationError(f"file descriptor {fd} is not memory that is sealed against shrinking")
    size = os.fstat(fd).st_size
    if not 0 <= nbytes <= size:
        raise SerializationError(f"a segment was said to have {nbytes} bytes and has {size}")
    if not nbytes:
        return memoryview(bytearray())
    try:
        return memoryview(mmap.mmap(fd, nbytes, access=mmap.ACCESS_COPY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        # No descriptor is free for the duplicate that the mapping would hold, so copy the content.
        return _read(fd, nbytes)


def _read(fd: int, nbytes: int) -> memoryview:
    memory = memoryview(bytearray(nbytes))
    offset = 0
    while offset < nbytes:
        offset += os.preadv(fd, [memory[offset:]], offset)
    return memory


def _write(fd: int, parts: Sequence[memoryview]) -> int:
    """Write all parts, in several calls if needed: one call takes at most IOV_MAX parts and 2 GiB, perhaps less."""
    queue = [part for part in parts if part.nbytes]
    queue.reverse()
    offset = 0
    while queue:
        batch = queue[: -_MAX_PARTS - 1 : -1]
        written = os.pwritev(fd, batch, offset)
        offset += written
        while queue and written >= queue[-1].nbytes:
            written -= queue.pop().nbytes
        if written:
            queue[-1] = queue[-1][written:]
    return offset


def _explain(error: OSError, nbytes: int) -> Exception:
    size = f"{nbytes / (1 << 20):.1f} MiB"
    if error.errno in (errno.ENOMEM, errno.ENOSPC):
        return MemoryError(
            f"no memory for a segment of {size} ({error.strerror}): shared memory counts against the machine's memory "
            "and against the memory limit of the container"
        )
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return OSError(error.errno, f"no file descriptor for a segment of {size}: this process may open {limit} files")
    hint = " (`ulimit -f` counts for shared memory too)" if error.errno == errno.EFBIG else ""
    return OSError(error.errno, f"cannot write a segment of {size}: {error.strerror}{hint}")
