"""``Lease``: a block that holds items, which stay in the channel until the block ends without an error."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from rlinf_async._channels.request import Get
from rlinf_async.work import Work, blocking


class LeasedItems(list[Any]):
    """The items of a lease.

    Attributes:
        redelivered: True if an earlier consumer received one of the items without confirming it.
    """

    def __init__(self, items: list[Any], redelivered: bool, confirm: Callable[[int], Work[None]]) -> None:
        super().__init__(items)
        self.redelivered = redelivered
        self.unconfirmed = len(items)
        self._confirm = confirm

    def done(self, count: int = 1) -> Any:
        """Confirm the first ``count`` unconfirmed items. In a coroutine, return a ``Work`` to await.

        Raises:
            LeaseLost: the lease has ended, and its items have returned to the queue.
            ValueError: ``count`` exceeds the number of unconfirmed items; raised immediately.
        """
        if type(count) is not int or not 1 <= count <= self.unconfirmed:
            most = self.unconfirmed
            raise ValueError(f"done() takes the number of items that are done, 1 to {most} here, got {count!r}")
        self.unconfirmed -= count
        return blocking(self._confirm(count))


class Lease:
    """A lease of items, for one ``async with`` block or, in ``def`` methods, one ``with`` block."""

    _use = "a lease is for one block: call channel.lease() for each"

    def __init__(self, get: Callable[[], Get[list[Any]]], confirm: Callable[[Get[Any], int], Work[None]]) -> None:
        self._start = get
        self._confirm = confirm
        self._get: Get[list[Any]] | None = None
        self._items: LeasedItems | None = None

    def __repr__(self) -> str:
        return f"<Lease [{self._items!r}]>"

    def _ask(self) -> Get[list[Any]]:
        if self._get is not None:
            raise RuntimeError(self._use)
        self._get = self._start()
        return self._get

    def _has(self, items: list[Any]) -> LeasedItems:
        get = self._get
        assert get is not None
        self._items = LeasedItems(items, get.redelivered, lambda count: self._confirm(get, count))
        return self._items

    async def __aenter__(self) -> LeasedItems:
        return self._has(await self._ask())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        ending = self._end(kind is None)
        if ending is not None:
            await ending

    def __enter__(self) -> LeasedItems:
        get = self._ask()
        try:
            return self._has(get.wait())
        except BaseException:
            get._lose_interest()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        ending = self._end(kind is None)
        if ending is not None:
            ending.wait()

    def _end(self, well: bool) -> Work[None] | None:
        """Confirm the unconfirmed items, or return them to the queue."""
        get, items = self._get, self._items
        assert get is not None
        assert items is not None
        left, items.unconfirmed = items.unconfirmed, 0
        if not left:
            return None
        if well:
            return self._confirm(get, left)
        assert get.destination is not None
        get.destination.withdraw(get)
        return None
