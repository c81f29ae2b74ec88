"""Finds a group or a channel by its name on node 0; a name that does not exist yet is waited for, with a deadline."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async.errors import DeadlineExceeded


async def find_name(client: NodeClient, kind: str, name: str, timeout: float | None, noun: str = "") -> Any:
    """The roster of a ``group`` or ``channel``.

    Args:
        noun: what is looked for, where its names are those of another kind.
        timeout: seconds; None for ``settings.NAME_TIMEOUT_S``, and with 0 what exists is found.

    Raises:
        DeadlineExceeded: there was none in time; lists those that there are.
        ClosedError: what had the name is closed.
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
        late = f"there was no {noun} named '{name}' within {timeout:g} s{limit}"
        patience = settings.WAIT_ANSWER_S()
        try:
            cancel = operations.CancelFind(kind, lookup.number)
            names = await client.request(cancel, node=0).async_wait(patience)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"{late}, and for {patience:g} s more node 0 has not said which there are: its daemon does not answer"
            ) from None
        if not lookup.done():
            raise DeadlineExceeded(f"{late}; there are: {', '.join(names) or 'none'}") from None
        return await lookup  # what is there is found, also with a timeout of 0
