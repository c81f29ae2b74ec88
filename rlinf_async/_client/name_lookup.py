"""Finds a group or a channel by its name on node 0; a name that does not exist yet is waited for, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async._core.operations import Operation
from rlinf_async.errors import DeadlineExceeded

_FIND: Final[dict[str, Callable[[str], Operation[Any]]]] = {
    "group": lambda name: operations.FindGroup(name, None, 0),
    "channel": operations.FindChannel,
    "experience": operations.FindChannel,
}
_CANCEL: Final[dict[str, Callable[[int], Operation[list[str]]]]] = {
    "group": operations.CancelFindGroup,
    "channel": operations.CancelFindChannel,
    "experience": operations.CancelFindChannel,
}
"""By kind of name."""


async def find_name(client: NodeClient, kind: str, name: str, timeout: float | None) -> Any:
    """The roster of a ``group``, ``channel`` or ``experience``.

    Args:
        timeout: seconds; None for ``settings.NAME_TIMEOUT_S``, and with 0 what exists is found.

    Raises:
        DeadlineExceeded: there was none in time; lists those that there are.
        ClosedError: what had the name is closed.
    """
    limit = ""
    if timeout is None:
        timeout = settings.NAME_TIMEOUT_S()
        limit = f" ({settings.NAME_TIMEOUT_S.variable})"
    await client.ready.async_wait()
    lookup = client.request(_FIND[kind](name), node=0, what=f"a{'n' * (kind == 'experience')} {kind} named '{name}'")
    try:
        return await lookup.async_wait(timeout)
    except asyncio.CancelledError:
        client.request(_CANCEL[kind](lookup.number), node=0)
        raise
    except DeadlineExceeded:
        late = f"there was no {kind} named '{name}' within {timeout:g} s{limit}"
        patience = settings.WAIT_ANSWER_S()
        try:
            names = await client.request(_CANCEL[kind](lookup.number), node=0).async_wait(patience)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"{late}, and for {patience:g} s more node 0 has not said which there are: its daemon does not answer"
            ) from None
        if not lookup.done():
            raise DeadlineExceeded(f"{late}; there are: {', '.join(names) or 'none'}") from None
        return await lookup  # what is there is found, also with a timeout of 0
