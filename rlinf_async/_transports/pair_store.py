"""Serverless ``torch.distributed`` store for two processes' rendezvous: each side's keys are sent to the other.

torch's own ``TCPStore`` listens on every interface and authenticates nobody. This store uses the connection that the
two sides already have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async.errors import TransferFailed


class PeerStore(Store):
    """Keys and values that two processes share while they create a process group.

    ``publish`` gets each key and value in the thread that sets it; the other side's store must get them by ``on_set``.
    """

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def on_set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self) -> None:
        """Fail all present and future waits for keys."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        value = value.encode() if isinstance(value, str) else bytes(value)
        self.on_set(key, value)
        self._publish(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        """Return once all keys are set, or raise TransferFailed once the store is closed. Torch's timeout is ignored,
        because the peer may be busy for long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self.check(keys))
            if self._is_closed:
                raise TransferFailed("the process group is not wanted any more")
