"""Messages between a sender and its receivers over a link: lists of plain data, the first item being the kind.

    sender -> receiver
      HELLO    manifest, extra, slots, memory, version     what will come; the version that is there already, or 0
      PUBLISH  version, memory, moment                     a version is there, in memory of this machine; without
                                                           memory, to one that has refused: does it fit by now?
      HOST     …, line                                     as HELLO, and: have memory for all receivers on your machine
      BRING    version, sizes, base, head                  a version comes for that memory, in tensors on that line;
                                                           with a head they are what has changed since version base
      BRING    …, receiver, seconds                        all of it comes from another machine's, where it is on its
                                                           way; once it is published, each piece within so many seconds
      WHOLE    version, extra, checksum                    it is published; nothing else belongs to it
      PASS     version, receiver, line                     that version goes on to another machine's, on that line
      KEEP     line                                        nobody waits for anything on that line any more
    receiver -> sender
      JOIN                                                 it follows a publication, and is to be its receiver
      READY    version, gpu                                what was announced fits; this version is applied; the uuid
                                                           of the GPU on which leaves can be read, or nothing
      REFUSE   failure                                     it does not; later versions only ask again
      ACK      version, failure, t_recv, t_apply, t_pause  what has become of a version
      LACK     version                                     its leaves are on a GPU only, and cannot be read there
      ROOM     version, line                               the tensors of a version that is to be brought may come
      LANDED   version, failure, memory, line              a version that was brought is in memory, and where
      STUCK    line, failure                               what was to go on along that line does not

A *receiver* is known to others by its link's ``address``.  A *memory* is a ``MemoryName``, or None; a *failure* is
packed, or None; a *moment* is one of the machine's monotonic clock, in seconds.
"""

from __future__ import annotations

import os
import platform
from typing import Final

from rlinf_async._core import failures

HELLO: Final = "hello"
PUBLISH: Final = "publish"
HOST: Final = "host"
BRING: Final = "bring"
WHOLE: Final = "whole"
PASS: Final = "pass"
KEEP: Final = "keep"
JOIN: Final = "join"
READY: Final = "ready"
REFUSE: Final = "refuse"
ACK: Final = "ack"
LACK: Final = "lack"
ROOM: Final = "room"
LANDED: Final = "landed"
STUCK: Final = "stuck"

TO_HOSTS: Final = frozenset({BRING, WHOLE, PASS, KEEP})
"""What a receiver's ``Host`` hears, whatever its owner is busy with."""


def pack_error(error: BaseException) -> bytes:
    """An exception of this process, for the other side."""
    return failures.pack(failures.capture(error, {"node": platform.node(), "pid": os.getpid()}))


def unpack_error(packed: bytes) -> Exception:
    return failures.rebuild(failures.unpack(packed))
