"""Messages between a sender and its receivers over a link: lists of plain data, the first item being the kind.

    sender -> receiver
      HELLO    manifest, extra, slots, memory, version     what will come; the version that is there already, or 0
      PUBLISH  version, memory, moment                     a version is there, in memory of this machine; 0 without
                                                           memory: does what comes fit?
      LEAVE    reason                                      nothing more comes, because the sender has failed
      HOST     …, line                                     as HELLO, and: have memory for all receivers on your machine
      BRING, WHOLE, PASS, KEEP                             a version for that memory, as of ``RelayPlan``; the facts of
                                                           WHOLE are its extra
    receiver -> sender
      JOIN                                                 it follows a publication, and is to be its receiver
      ACK      version, failure, gpu, t_recv, t_apply,     what has become of a version, or of 0, whether what comes
               t_pause, digests                            fits; the uuid of the GPU on which leaves can be read, or
                                                           nothing; the version, forms and digests of what the model
                                                           holds, or None
      NEED     version, memory                             its leaves cannot be read: they are on a GPU only; or this
                                                           memory cannot be opened, and who has it is gone, perhaps
      ROOM, LANDED, STUCK                                  what becomes of it there

A *memory* is a ``MemoryName``, or None; a *failure* is packed, or None; a *moment* is one of the machine's monotonic
clock, in seconds.
"""

from __future__ import annotations

from typing import Final

HELLO: Final = "hello"
PUBLISH: Final = "publish"
HOST: Final = "host"
LEAVE: Final = "leave"
JOIN: Final = "join"
ACK: Final = "ack"
NEED: Final = "need"
