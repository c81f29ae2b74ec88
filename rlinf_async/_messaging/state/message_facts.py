"""Wire protocol between two mailboxes: codes and fields of a MESSAGE frame's ``facts`` (DATA, GRANT, LINK, ...).

A *stream* is one line of messages, first in, first out: 0 is what a worker sends to another one, anything else a
broadcast among certain workers.  Its sender numbers the messages from 1.  *about* is what the receiver has to know
before it takes a message, *charge* what it takes of the stream's room, in bytes
(``_messaging/state/flow_control.py``)::

    sender -> receiver
      INTRODUCE  group rank node pid                        before all else: who is speaking
      DATA       stream number kind about charge via        a message
      ANNOUNCE   stream number kind about                   its place in the line; it waits for room, or for a receive
      CONTENT    stream number charge via                   of a message that was announced, or that was lost
      WITHDRAW   stream number                              there is no such message
    receiver -> sender
      GRANT      stream number                              it has a receive: send the content now
      ROOM       stream total                               all that was received of the stream so far, in bytes
      TAKEN      stream number                              the content is here and fits
      LOST       stream number                              the content did not come through: send it again
      REFUSED    stream number why                          its receive does not want such a message
    both ways
      GPU        machine uuid model reachable               what ``gpu_link_choice.Gpu`` says; wants to hear the other's
      LINK       name facts                                 what one end of a link says to the other
      RELAY      stream number words…                       of a message that goes from node to node, and its hosts

The content is the body of the frame, where *via* is None; otherwise *via* is ``[name of a link, transfer, sizes]``, and
the link brings buffers of these sizes, of which the frame's body, where it is not empty, is the first.  Between GPUs
*via* ends with the places of these buffers among all; the rest of the content is a body of its own, and rides on the
frame as any other.  A message that has come by the relay has the *via* ``["relay", [path, inode], sizes]``: its buffers
are in that memory of the receiver's node (``_messaging/relayed_broadcast.py``).
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
"""An object, and a piggyback."""
TENSOR: Final = 2
"""The bytes of one tensor, to be received in place; ``about`` is its dtype, its shape and its type of device."""

POINT_TO_POINT: Final = 0
"""The stream between two workers."""
