"""The error's name and text for each refusal by a channel's queue: full, empty, closed, item too large or heavy."""

from __future__ import annotations

from typing import Any

from rlinf_async._channels.state.actions import QueueAction


def refusal(action: int, subject: Any, channel: str, max_bytes: int) -> tuple[str, str]:
    """Return the name of an exception (of asyncio, Python or ``errors.py``) and its text.

    Args:
        action, subject: the action returned by the queue, and the item or get that it refers to.
        channel: the channel's name.
        max_bytes: byte bound of the queue.
    """
    if action == QueueAction.FULL:
        return "QueueFull", f"channel '{channel}' is full: put() waits for room, with timeout= for so long"
    if action == QueueAction.EMPTY:
        return "QueueEmpty", f"channel '{channel}' is empty: get() waits for an item, with timeout= for so long"
    if action == QueueAction.ENDED:
        return "EndOfChannel", closed_to_gets(channel)
    if action == QueueAction.CLOSED:
        return "ClosedError", closed_to_puts(channel)
    if action == QueueAction.TOO_LARGE:
        return "ValueError", (
            f"an item of {subject.nbytes} bytes can never enter channel '{channel}', whose items may have {max_bytes} "
            "bytes together: give it a larger max_bytes="
        )
    if action == QueueAction.TOO_HEAVY:
        return "ValueError", (
            f"the next item of channel '{channel}' weighs {subject.weight}, which is more than get_batch's "
            f"target_weight {subject.target}: it can never be part of such a batch; take it with get()"
        )
    asked, had = f"get_batch of weight {subject.target}", f"a weight of {subject.weight}"
    if subject.counted:
        asked, had = f"get_many of {subject.target} items", f"{subject.weight}"
    return "ValueError", (
        f"{asked} on channel '{channel}' had gathered {had} when its items filled max_bytes={max_bytes}: make that "
        "larger, or the batch smaller"
    )


def lease_lost(channel: str) -> str:
    """Return the error text for a consumer that confirms items too late."""
    return (
        f"the lease of channel '{channel}' is over, and its items have gone back, perhaps to another consumer: what "
        "was done with them counts for nothing; give lease() a longer timeout=, or confirm items one by one with done()"
    )


def closed_to_puts(channel: str, why: str = "", noun: str = "channel") -> str:
    """Return the error text of a refused put; ``why`` is a reason other than a plain close."""
    return f"{noun} '{channel}' is closed{why and f': {why}'}; nothing can be put there any more{_anew(noun)}"


def closed_to_gets(channel: str, why: str = "", noun: str = "channel") -> str:
    """Return the error text of a refused get; ``why`` is a reason other than a plain close."""
    return f"{noun} '{channel}' is closed{why and f': {why}'}; nothing is left to get there{_anew(noun)}"


def _anew(noun: str) -> str:
    return f" (one that is made again under its name is another {noun}, which {noun.title()}.connect() finds)"
