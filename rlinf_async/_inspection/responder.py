"""Answers a daemon that asks what this process does; tells it where the stacks come if nothing answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async._inspection import stack_pipe
from rlinf_async._inspection.own_activities import own_activities
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import to_data
from rlinf_async._inspection.wait_ages import WaitAges

logger = logging.getLogger(__name__)


def attach(client: NodeClient, calls: Callable[[], Iterable[ServedCall]] = list) -> dict[str, Any]:
    """Has this process answer, where its frames are handled, until the client is closed.

    Args:
        calls: those that it serves, whenever it is asked.

    Returns:
        What the client's HELLO has to say: the number of the descriptor into which stacks are written.
    """
    responder = _Responder(client, calls)
    client.events.on("inspect", responder.answer)
    fd = stack_pipe.acquire()
    if fd is None:
        return {}
    client.events.on("closed", lambda facts: stack_pipe.release())
    return {"stacks": fd}


class _Responder:
    def __init__(self, client: NodeClient, calls: Callable[[], Iterable[ServedCall]]) -> None:
        self._client = client
        self._calls = calls
        self._ages = WaitAges()

    def answer(self, facts: dict[str, Any]) -> None:
        """Tells of this process.  If that fails it says nothing: then its daemon looks at the stacks."""
        try:
            activities = [to_data(activity) for activity in own_activities(self._calls, self._ages)]
            self._client.request(operations.Inspected(facts["round"], activities))
        except Exception:
            logger.debug("this process cannot tell what it does", exc_info=True)
