"""Codes of the actions (ACCEPTED, DELIVER, FULL, ...) that a queue's state machine returns for its owner."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final


class QueueAction(IntEnum):
    """Codes of a queue's actions for its owner; each comment names the action's argument."""

    ACCEPTED = 0  # an item: notify its producer that the queue has it
    DELIVER = 1  # a get: deliver its items to its consumer
    FULL = 2  # an item: put_nowait found no room
    EMPTY = 3  # a get: get_nowait found nothing
    ENDED = 4  # a get: the queue is closed and stays empty
    CLOSED = 5  # an item: the queue is closed
    TOO_LARGE = 6  # an item: it alone exceeds the byte bound
    TOO_HEAVY = 7  # a batch: the next item alone weighs more than its target
    OUT_OF_BYTES = 8  # a batch: its gathered items use up the byte bound
    FREED = 9  # a client, and the number of admitted bytes of its unanswered puts
    SHARED = 10  # a client: there is another consumer
    FAILED = 11  # a client, the number of its request, the name of an error, its message


# Plain integers, because every item uses them.
ACCEPTED: Final = int(QueueAction.ACCEPTED)
DELIVER: Final = int(QueueAction.DELIVER)

Step = tuple[int, Any]
