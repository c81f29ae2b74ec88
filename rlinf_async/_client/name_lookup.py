"""Lookup of a group or channel by name on node 0; waits, up to a deadline, for names that do not exist yet."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.work import Work


async def find_name(client: NodeClient, kind: str, name: str, timeout: float | None, noun: str = "") -> Any:
    """Return the roster of a ``group`` or ``channel``.

    Args:
        noun: noun for messages, if different from the kind.
        timeout: seconds; None for ``settings.NAME_TIMEOUT_S``; 0 to find only a name that already exists.

    Raises:
        DeadlineExceeded: the name did not appear in time; the text lists the existing names.
        ClosedError: the group or channel of that name is closed.
    """
    limit, noun = "", noun or kind
    if timeout is None:
        timeout = settings.NAME_TIMEOUT_S()
        limit = f" ({settings.NAME_TIMEOUT_S.variable})"
    await client.ready.async_wait()
    what = f"a{'n' * (noun == 'experience')} {noun} named '{name}'"
    lookup = client.request(operations.Find(kind, name, None, 0), node=0, what=what)
    try:
        return await lookup.async_wait(timeout)
    except asyncio.CancelledError:
        client.request(operations.CancelFind(kind, lookup.number), node=0)
        raise
    except DeadlineExceeded:
        late = await end_lookup(client, kind, f"{noun} named '{name}' within {timeout:g} s{limit}", lookup.number)
        if not lookup.done():
            raise late from None
        return await lookup  # an existing name is found even with a timeout of 0


def end_lookup(client: NodeClient, kind: str, what: str, lookup: int) -> Work[DeadlineExceeded]:
    """Cancel an overdue lookup. Return its error, with the existing names if they arrive within ``WAIT_ANSWER_S``."""
    said: Work[DeadlineExceeded] = Work()
    patience = settings.WAIT_ANSWER_S()
    request = client.request(operations.CancelFind(kind, lookup), node=0, what=f"the names of all {kind}s")

    def answered() -> None:
        try:
            there = f"; there are: {', '.join(request._result()) or 'none'}"
        except Exception as error:
            there = f" ({error})"
        say(there)

    def say(there: str) -> None:
        said._settle(DeadlineExceeded(f"there was no {what}{there}"))

    silent = f", and for {patience:g} s more node 0 has not said which there are: its daemon does not answer"
    request._follow(answered)
    client.later(patience, lambda: say(silent))
    return said
