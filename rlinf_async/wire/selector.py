"""Two event loops, on two threads, that read one socket: whoever is idle takes what arrives.

A worker's main thread runs user code, and a second thread reads the socket meanwhile.  While the main thread is idle
the second one would only be in the way: a wake-up of it, and another one of the main thread, for every call.  So the
socket is registered with both loops as ``EPOLLEXCLUSIVE``: the kernel wakes one thread that waits, the one that
registered first if it does, and none that is busy::

    main loop     shared.share(fd); loop.add_reader(fd, …)      registers first: woken while it is idle
    socket loop   shared.share(fd); loop.add_reader(fd, …)      woken while the main thread is in user code
"""

from __future__ import annotations

import select
import selectors
from collections.abc import Mapping
from typing import Any, Final

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
_OUT_ONLY: Final = ~select.EPOLLIN
_IN_ONLY: Final = ~select.EPOLLOUT


class SharedSelector(selectors.BaseSelector):
    """A selector of one event loop, some of whose descriptors other loops wait for too.

    Example:
        loop = asyncio.SelectorEventLoop(selector := SharedSelector())
        selector.share(sock.fileno())
        loop.add_reader(sock.fileno(), read_if_anything_is_there)
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._shared: set[int] = set()

    def share(self, fd: int) -> None:
        """What is registered under this number from now on is shared with other loops."""
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
            pass  # it was closed, and the kernel has forgotten it
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[self._number_of(fileobj)]
        if events != key.events:
            self.unregister(fileobj)  # the kernel does not change what is exclusive
            return self.register(fileobj, events, data)
        key = self._keys[key.fd] = key._replace(data=data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        wait = -1.0 if timeout is None else max(0.0, timeout)
        ready = []
        keys = self._keys
        try:
            events = self._epoll.poll(wait, len(keys) or 1)
        except InterruptedError:
            return []
        for fd, event in events:
            key = keys.get(fd)
            if key is not None:
                happened = (_WRITE if event & _OUT_ONLY else 0) | (_READ if event & _IN_ONLY else 0)
                ready.append((key, happened & key.events))
        return ready

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()

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
        return next(fd for fd, key in self._keys.items() if key.fileobj is fileobj)  # closed meanwhile
