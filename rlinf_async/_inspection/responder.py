"""Answers a daemon that asks what this process does; tells it how to learn that if nothing answers.

Where the user's loop handles frames and is blocked, a thread is woken that answers all rounds (``loop_witness.py``); if
that does not answer either, the stacks are requested by a signal (``stack_pipe.py``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._inspection import stack_pipe
from rlinf_async._inspection.loop_witness import LoopWitness
from rlinf_async._inspection.own_activities import own_activities
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import to_data
from rlinf_async._inspection.wait_ages import WaitAges

logger = own_logger(__name__)


def attach(client: NodeClient, calls: Callable[[], Iterable[ServedCall]] = list) -> dict[str, Any]:
    """Has this process answer, where its frames are handled, until the client is closed.

    Args:
        calls: those that it serves, whenever it is asked.

    Returns:
        What the client's HELLO has to say: the numbers of the descriptors into which stacks are written, and that wakes
        whoever answers for the user's loop; without one that cannot be had.
    """
    responder = _Responder(client, calls)
    client.events.on("inspect", responder.answer)
    facts: dict[str, Any] = {}
    fd = stack_pipe.acquire()
    if fd is not None:
        client.events.on("closed", lambda facts: stack_pipe.release())
        facts["stacks"] = fd
    if client.user_loop is not None:
        try:
            witness = LoopWitness(responder.answer_for_loop)
        except (OSError, RuntimeError):
            return facts
        client.events.on("closed", lambda facts: witness.close())
        facts["witness"] = witness.fd
    return facts


class _Responder:
    def __init__(self, client: NodeClient, calls: Callable[[], Iterable[ServedCall]]) -> None:
        self._client = client
        self._calls = calls
        self._ages = WaitAges()
        self._lock = threading.Lock()
        """Held during a look: two threads may be asked at once."""

    def answer(self, facts: dict[str, Any]) -> None:
        """Tells of this process.  If that fails it says nothing: then its daemon looks at the stacks."""
        self._tell(facts["round"], None)

    def answer_for_loop(self) -> None:
        """The same from another thread, because the user's loop has not read the question."""
        self._tell(operations.ALL_ROUNDS, self._client.user_loop)
        self._client.flush()

    def _tell(self, round_: int, blocked: asyncio.AbstractEventLoop | None) -> None:
        try:
            with self._lock:
                activities = own_activities(self._calls, self._ages, blocked)
            activities += [told() for told in list(self._client.restarts.values())]
            self._client.request(operations.Inspected(round_, [to_data(activity) for activity in activities]))
        except Exception:
            logger.debug("this process cannot tell what it does", exc_info=True)
