"""Action codes (ACCEPTED, DELIVER, GRANT, ...) that a queue's state machine returns for its owner to carry out."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final


class Act(IntEnum):
    """Actions of a queue's owner; the comment says with what."""

    ACCEPTED = 0  # an item: it is in the queue, tell its producer
    DELIVER = 1  # a get: hand its items to its consumer
    FULL = 2  # an item: put_nowait found no room
    EMPTY = 3  # a get: get_nowait found nothing
    PARKED = 4  # an item: it waits for room, and what it carries waits with its producer
    PULL = 5  # an item: there is room now, have its producer send what it carries
    ENDED = 6  # a get: the queue is closed, and nothing will come any more
    CLOSED = 7  # an item: the queue is closed
    TOO_LARGE = 8  # an item: it has more bytes than all items together may have
    TOO_HEAVY = 9  # a batch: the next item alone weighs more than its target
    OUT_OF_BYTES = 10  # a batch: what it has gathered leaves no room for the rest of it
    GRANT = 11  # a grant: its client may put so many bytes more without an answer
    RECALL = 12  # a recall: its client shall return what it was granted, or it is forfeited after a while
    LOST = 13  # an item that was paid for with what had been forfeited, when the queue was closed already
    ANSWER = 14  # a question: what is queued now is the answer
    CALL_BACK = 15  # a call: its client shall give back what it has prefetched, or it is forfeited after a while


# As plain numbers: this is where every item passes.
ACCEPTED: Final = int(Act.ACCEPTED)
DELIVER: Final = int(Act.DELIVER)

Step = tuple[int, Any]
