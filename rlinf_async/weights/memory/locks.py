"""Who has a slot, as the kernel knows: locks on its memory, which are gone with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

LEASE: Final = 0
"""Read by whoever reads the slot, written by whoever writes it."""

OPENED: Final = 1
"""Read by whoever has opened what the slot has on a GPU, whether it reads there or not."""

READ: Final = fcntl.F_RDLCK
WRITE: Final = fcntl.F_WRLCK
NONE: Final = fcntl.F_UNLCK


def lock(fd: int, kind: int, what: int = LEASE) -> bool:
    """Takes or gives back a lock on a descriptor's memory, without waiting.  False if another one is in the way.

    It is the open file's, not the process's: another descriptor of the same process is in the way too.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, what, 1, 0))
    except BlockingIOError:
        return False
    return True
