"""What somebody is told whose put or get a channel's queue turns down."""

from __future__ import annotations

from typing import Any

from rlinf_async.core.steps import Act


def refusal(act: int, what: Any, channel: str, max_bytes: int) -> tuple[str, str]:
    """The name of an error, of asyncio, of Python or of ``errors.py``, and its text.

    Args:
        act, what: the step that the queue returned.
        channel: the channel's name.
        max_bytes: of the queue.
    """
    if act == Act.FULL:
        return "QueueFull", f"channel '{channel}' is full"
    if act == Act.EMPTY:
        return "QueueEmpty", f"channel '{channel}' is empty"
    if act == Act.ENDED:
        return "EndOfChannel", f"channel '{channel}' is closed, and everything in it has been taken"
    if act == Act.CLOSED:
        return "ClosedError", f"channel '{channel}' is closed: nothing can be put there any more"
    if act == Act.TOO_LARGE:
        return "ValueError", (
            f"an item of {what.nbytes} bytes can never enter channel '{channel}', whose items may have {max_bytes} "
            "bytes together: give it a larger max_bytes="
        )
    if act == Act.TOO_HEAVY:
        return "ValueError", (
            f"the next item of channel '{channel}' weighs {what.weight}, which is more than get_batch's target_weight "
            f"{what.target}: it can never be part of such a batch; take it with get()"
        )
    return "ValueError", (
        f"get_batch of weight {what.target} on channel '{channel}' had gathered a weight of {what.weight} when its "
        f"items filled max_bytes={max_bytes}: make that larger, or the batch smaller"
    )
