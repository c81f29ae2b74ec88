"""An epoll selector for one event loop that shares descriptors with another thread's loop (EPOLLEXCLUSIVE).

A socket is registered with both loops as ``EPOLLEXCLUSIVE``. The kernel then wakes only one waiting thread, preferably
the one that registered first, and never a busy thread::

    main loop     selector.read_in_select(fd, read)                registers first: woken while it is idle
    socket loop   selector.share(fd); loop.add_reader(fd, …)     woken while the main thread is in user code
"""

from __future__ import annotations

import contextlib
import select
import selectors
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
_OUT_ONLY: Final = ~select.EPOLLIN
_IN_ONLY: Final = ~select.EPOLLOUT


class SharedSelector(selectors.BaseSelector):
    """A selector for one event loop, some of whose descriptors are also watched by other loops.

    Attributes:
        polled_at: time of the loop's last poll, in seconds of the monotonic clock.

    Example:
        loop = asyncio.SelectorEventLoop(selector := SharedSelector())
        selector.share(sock.fileno())
        loop.add_reader(sock.fileno(), read_if_anything_is_there)
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._shared: set[int] = set()
        self._read_in_select: dict[int, Callable[[], None]] = {}
        self.polled_at = 0.0

    def read_in_select(self, fd: int, read: Callable[[], None]) -> None:
        """Share a descriptor, and read it within the poll rather than in the loop's next turn.

        Any thread may call this. While the loop runs, it calls ``read`` on its own thread.
        """
        self._read_in_select[fd] = read
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def stop_reading(self, fd: int) -> None:
        """Stop reading. Any thread may call this, before the descriptor is closed."""
        if self._read_in_select.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # a closed descriptor is already unregistered
                self._epoll.unregister(fd)

    def share(self, fd: int) -> None:
        self._shared.add(fd)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} (file descriptor {fd}) is already registered")
        mask = (select.EPOLLIN if events & _READ else 0) | (select.EPOLLOUT if events & _WRITE else 0)
        if fd in self._shared:
            mask |= select.EPOLLEXCLUSIVE
        self._epoll.register(fd, mask)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = self._number_of(fileobj)
        key = self._keys.pop(fd)
        try:
            self._epoll.unregister(fd)
        except OSError:
            pass  # a closed descriptor is already unregistered
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[self._number_of(fileobj)]
        if events != key.events:
            self.unregister(fileobj)  # the kernel cannot modify exclusive registrations
            return self.register(fileobj, events, data)
        key = self._keys[key.fd] = key._replace(data=data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        wait = -1.0 if timeout is None else max(0.0, timeout)
        ready = []
        keys = self._keys
        read_in_select = self._read_in_select
        try:
            events = self._epoll.poll(wait, len(keys) + len(read_in_select) or 1)
        except InterruptedError:
            return []
        self.polled_at = clock.monotonic()
        for fd, event in events:
            read = read_in_select.get(fd)
            if read is not None:
                try:
                    read()
                except Exception:
                    logger.exception("file descriptor %d could not be read", fd)
                continue
            key = keys.get(fd)
            if key is not None:
                happened = (_WRITE if event & _OUT_ONLY else 0) | (_READ if event & _IN_ONLY else 0)
                ready.append((key, happened & key.events))
        return ready

    def forget(self) -> None:
        """Give a forked child a separate, empty epoll instance.

        Parent and child share the parent's epoll instance: a loop that ran in the child, or was closed there, would
        consume wake-ups of the parent's loop, and a frame would stay unread until the next frame arrives.

        tests/test_forks.py::test_a_loop_that_runs_in_a_workers_child_takes_no_wake_up_from_its_parents
        """
        self._epoll.close()
        self._epoll = select.epoll()
        self._read_in_select.clear()

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._read_in_select.clear()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[self._number_of(fileobj)]

    def _number_of(self, fileobj: Any) -> int:
        if isinstance(fileobj, int):
            return fileobj
        number = int(fileobj.fileno())
        if number >= 0:
            return number
        # The descriptor has been closed, so only the object identifies its entry.
        return next(fd for fd, key in self._keys.items() if key.fileobj is fileobj)
