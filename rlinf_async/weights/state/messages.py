"""Messages between a sender and its receivers over a link: lists of plain data whose first item is the kind.

    sender -> receiver
      HELLO    manifest, extra, slots, memory, version     layout of the versions; the version already available, or 0
      PUBLISH  version, memory, moment                     a version is available in memory of this machine; 0
                                                           without memory asks whether the weights fit
      LEAVE    reason                                      no version will follow, because the sender has failed
      HOST      …, line                                     as HELLO; also allocate memory for your machine's receivers
      BRING, WHOLE, PASS, KEEP                             a version for that memory, as in ``RelayPlan``; the facts of
                                                           WHOLE are its extra
    receiver -> sender
      JOIN                                                 the worker follows a publication: add it as a receiver
      ACK      version, failure, gpu, t_recv, t_apply,     outcome of a version or, for 0, whether the weights
               t_pause, digests                            fit; the uuid of the GPU on which it can read leaves, or
                                                           empty; the version, forms and digests of the model's
                                                           tensors, or None
      NEED     version, memory                             the leaves cannot be read: they are on a GPU only; or this
                                                           memory cannot be opened, and its owner may have ended
      ROOM, LANDED, STUCK                                  the outcome in that memory, as in ``RelayPlan``

A *memory* is a ``MemoryName``, or None; a *failure* is a packed error, or None; a *moment* is a time on the machine's
monotonic clock, in seconds.
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
