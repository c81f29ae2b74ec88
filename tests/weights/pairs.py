"""A publisher and its subscribers, connected within one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import LocalLink


@contextlib.asynccontextmanager
async def pair(
    source: Any, *destinations: Any, serves: bool = True, **options: Any
) -> AsyncIterator[tuple[Publisher, list[Subscriber]]]:
    """A publisher of the source and a subscriber for each destination, connected."""
    theirs = {name: options[name] for name in ("apply", "verify", "ack_timeout", "gpus") if name in options}
    async with contextlib.AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(Publisher(source, **options))
        subscribers = []
        for number, destination in enumerate(destinations):
            to_receiver, to_sender = LocalLink.pair()
            publisher.add(number, to_receiver)
            subscribers.append(await stack.enter_async_context(Subscriber(to_sender, destination, **theirs)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.connect(5))
            for subscriber in subscribers:
                tasks.create_task(subscriber.connect(5))
        if serves:
            for subscriber in subscribers:
                subscriber.serve()
        yield publisher, subscribers
