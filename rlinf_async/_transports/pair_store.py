"""A serverless ``torch.distributed`` store for the rendezvous of two processes: each sends its keys to the other.

torch's own ``TCPStore`` listens on every interface without authentication. This store uses the existing connection
between the two sides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async.errors import TransferFailed


class PeerStore(Store):
    """A store of keys and values that two processes share while they create a process group.

    ``publish`` is called with each key and value that a thread sets, and must deliver them to the peer's ``on_set``.
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
        """Fail all current and future waits for keys."""
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
        because the peer may be busy for a long time."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self.check(keys))
            if self._is_closed:
                raise TransferFailed("the process group is not wanted any more")
