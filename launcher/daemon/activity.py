"""Answers what the workers and the pending requests of this node are at; asked for words about long waits only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._core.resource_locks import Ticket

from .channel_names import ChannelNames
from .channels import Channels
from .device_locks import Locks
from .endpoint import Endpoint
from .group_names import Names
from .process_state import state_of
from .router import Router
from .templates import Templates

MAX_CALLS: Final = 5
"""Open calls of a worker that are told."""


class Activity:
    """What this node's processes do, as far as its daemon and the kernel know; nothing here waits for any of them."""

    def __init__(
        self,
        router: Router,
        templates: Templates,
        names: Names,
        channels: Channels,
        channel_names: ChannelNames,
        locks: Locks,
    ) -> None:
        self._router = router
        self._channels = channels
        groups, table = names.directory, channel_names.table
        self._progress: dict[str, Callable[[int, int, Any], str]] = {
            "lookup": lambda source, ask, arguments: (
                f"group '{arguments['name']}' is being started"
                if arguments["name"] in groups.entries
                else _absent("group", arguments["name"], groups.names())
            ),
            "find_channel": lambda source, ask, arguments: _absent("channel", arguments["name"], table.names()),
            "redeem_promise": lambda source, ask, arguments: "the process that has passed it on is still making it",
            "lock_devices": lambda source, ask, arguments: _holders(locks.in_the_way(Ticket(source, ask))),
            "spawn": lambda source, ask, arguments: templates.describe(),
            "close": lambda source, ask, arguments: self._group(arguments["group"]),
        }

    async def do_activity(self, source: int, ask: int, arguments: Any) -> list[Any]:
        """``[state, calls, count]`` of each worker of the ``numbers``; None of one that is not there any more.

        The state is what is unusual about its process, the calls are ``[method, seconds]`` of the oldest ones of so
        many that are open.
        """
        now = time.monotonic()
        found = [self._router.endpoints.get(number) for number in arguments["numbers"]]
        return [
            [_state(worker), worker.debts.ages(now, MAX_CALLS), len(worker.debts)]
            if worker is not None and worker.obituary is None
            else None
            for worker in found
        ]

    async def do_progress(self, source: int, ask: int, arguments: Any) -> str:
        """What an open request of the asker waits for here, in words: ``operation``, its ``arguments``, its ``ask``."""
        tell = self._progress.get(arguments["operation"])
        return "" if tell is None else tell(source, arguments["ask"], arguments["arguments"])

    async def do_queue(self, source: int, ask: int, arguments: Any) -> str:
        """What is in the channel with this ``number``, under a ``key``, and who waits there."""
        return self._channels.describe(arguments["number"], arguments["key"])

    def _group(self, name: str) -> str:
        """The processes of a group that have not ended."""
        alive = [
            f"{worker.process.birth.name}{f' ({state})' if (state := _state(worker)) else ''}"
            for worker in self._router.endpoints.values()
            if worker.process is not None and worker.process.birth.group == name and worker.process.verdict is None
        ]
        return f"still alive: {', '.join(alive)}" if alive else ""


def _state(worker: Endpoint) -> str:
    if worker.process is not None:
        return state_of(worker.process.pid, worker.process.image)
    return state_of(worker.pid, None) if worker.pid else ""


def _absent(what: str, name: str, names: list[str]) -> str:
    return f"{what} '{name}' is not there; there are: {', '.join(names) or 'none'}"


def _holders(names: list[str]) -> str:
    return f"taken by {', '.join(names)}" if names else ""
