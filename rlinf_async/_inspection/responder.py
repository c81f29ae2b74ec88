"""Answers for a daemon that inspects this process, with two fallbacks if the process's loop does not answer.

If the user's loop handles frames and is blocked, the daemon wakes a thread that answers all rounds
(``blocked_loop_responder.py``). If this thread does not answer either, the daemon requests the stacks with a signal
(``stack_pipe.py``).
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
from rlinf_async._inspection.blocked_loop_responder import BlockedLoopResponder
from rlinf_async._inspection.own_activities import own_activities
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import to_data
from rlinf_async._inspection.wait_ages import WaitAges

logger = own_logger(__name__)


def attach(client: NodeClient, calls: Callable[[], Iterable[ServedCall]] = list) -> dict[str, Any]:
    """Answer inspections of this process, on the thread that handles its frames, until the client is closed.

    Returns:
        Facts for the client's HELLO: the descriptors, if any, for stacks and for waking the answering thread.
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
            witness = BlockedLoopResponder(responder.answer_for_loop)
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
        self._lock = threading.Lock()  # held during an examination, because two threads may answer at once

    def answer(self, facts: dict[str, Any]) -> None:
        """Answer an inspection. A failure is not reported, because without an answer the daemon reads the stacks."""
        self._send_activities(facts["round"], None)

    def answer_for_loop(self) -> None:
        """Answer all pending inspections from another thread, because the user's loop has not read the requests."""
        self._send_activities(operations.ALL_ROUNDS, self._client.user_loop)
        self._client.flush()

    def _send_activities(self, round_: int, blocked: asyncio.AbstractEventLoop | None) -> None:
        try:
            with self._lock:
                activities = own_activities(self._calls, self._ages, blocked)
            activities += [activity() for activity in list(self._client.restarts.values())]
            self._client.request(operations.Inspected(round_, [to_data(activity) for activity in activities]))
        except Exception:
            logger.debug("this process cannot tell what it does", exc_info=True)
