"""The wire protocol between two mailboxes: codes and fields of a MESSAGE frame's ``facts`` (DATA, GRANT, LINK, ...).

A *stream* is a first-in, first-out sequence of messages: stream 0 carries the messages from one worker to another; any
other stream is a broadcast among certain workers or a private stream. The sender numbers the messages from 1. *about*
is the description that a receiver needs before accepting a message; *charge* is the number of bytes that the message
uses of the stream's window (``_messaging/state/flow_control.py``)::

    sender -> receiver
      INTRODUCE  group rank node pid                        first message: the sender's names
      DATA       stream number kind about charge via        a message
      ANNOUNCE   stream number kind about                   reserves its place; the content waits for room or GRANT
      CONTENT    stream number charge via                   content of a message that was announced or lost
      WITHDRAW   stream number                              the message is cancelled
    receiver -> sender
      GRANT      stream number                              a receive is posted: send the content now
      ROOM       stream total                               bytes of the stream received so far
      TAKEN      stream number                              the content has arrived and fits
      LOST       stream number                              the content was lost: send it again
      REFUSED    stream number why                          the receive does not accept the message
    both directions
      GPU        machine uuid model reachable               announces a ``gpu_link_choice.Gpu``, requests the peer's
      LINK       name facts                                 control message of a link
      RELAY      stream number message…                     control message of a relayed broadcast

The content is the body of the frame if *via* is None. Otherwise *via* is ``[name of a link, transfer, sizes]``, and the
link carries buffers of these sizes; if the frame's body is empty, the first buffer is the pickle. Between GPUs, *via*
ends with the indices of these buffers among all buffers; the rest of the content is in the body of the frame. For a
message sent over the relay, *via* is ``["relay", [path, inode], sizes]``; the buffers are in this memory on the
receiver's node (``_messaging/relayed_broadcast.py``).
"""

from __future__ import annotations

from typing import Final

DATA: Final = 0
ANNOUNCE: Final = 1
CONTENT: Final = 2
WITHDRAW: Final = 3
GRANT: Final = 4
ROOM: Final = 5
TAKEN: Final = 6
LOST: Final = 7
REFUSED: Final = 8
LINK: Final = 9
INTRODUCE: Final = 10
GPU: Final = 11
RELAY: Final = 12

OBJECT: Final = 0
PAIR: Final = 1
TENSOR: Final = 2
"""Bytes of one tensor, received in place; ``about`` has its dtype, shape and device type."""

POINT_TO_POINT: Final = 0
