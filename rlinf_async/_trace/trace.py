"""Sends this process's recorded spans, in batches, to the daemon that writes the run's trace file."""

from __future__ import annotations

import os
import threading
import time
from asyncio import current_task
from asyncio.events import _get_running_loop
from typing import Any, Final

from rlinf_async._client.client import NodeClient
from rlinf_async._core import frames, operations
from rlinf_async._trace.state.spans import FLUSH_SPANS, Recorder
from rlinf_async.work import Work

_SEND_INTERVAL_NS: Final = 200_000_000
"""Nanoseconds; what a call has recorded when it ends is sent if nothing was for so long."""

_MAX_UNCONFIRMED_BATCHES: Final = 4
"""Batches that have been sent and not been taken yet."""


class Trace:
    """The spans of this process, on their way into the run's trace file.

    Args:
        client: its connection to the daemon.
        name: what it is called there.
        home: the node whose daemon writes the file.
        path: the file, on that node.
        shift: nanoseconds by which this process's clock is behind its daemon's.
    """

    def __init__(self, client: NodeClient, name: str, home: int, path: str, shift: int = 0) -> None:
        self.path = path
        self._client = client
        self._name = name[:200]
        self.home = home
        self._shift = shift
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_asked = False
        self._is_behind = False
        self._sent_at = 0
        main = threading.main_thread().ident or 0
        self.recorder = Recorder(who, self.ask_to_send, main)

    def ask_to_send(self) -> None:
        """Has what there is sent soon, from the client's loop; any thread, a finalizer even."""
        if self._is_asked:
            return
        self._is_asked = True
        try:
            self._client.loop.call_soon_threadsafe(self._send_some)
        except RuntimeError:
            pass  # that loop is closed, and with it the way there

    def _send_some(self) -> None:
        self._is_asked = False
        self._sent_at = time.monotonic_ns()
        while len(self.recorder):
            with self._lock:
                self._is_behind = self._under_way >= _MAX_UNCONFIRMED_BATCHES
                if self._is_behind:
                    return
                self._under_way += 1
            request = self._send_batch()
            if request is None:
                self._taken()
            else:
                request._follow(self._taken)

    def _taken(self) -> None:
        with self._lock:
            self._under_way -= 1
        if self._is_behind or len(self.recorder) >= FLUSH_SPANS:
            self.ask_to_send()

    def _send_batch(self) -> Work[Any] | None:
        batch = self.recorder.take()
        if batch is None:
            return None
        body = frames.pack([self._name, os.getpid(), self._shift, *batch])
        return self._client.request(operations.WriteSpans(body), node=self.home, what="the writing of the trace")

    def send_all(self) -> list[Work[Any]]:
        """Sends everything now; what tells that it is there."""
        requests: list[Work[Any]] = []
        while (request := self._send_batch()) is not None:
            requests.append(request)
        return requests

    def call_ended(self) -> None:
        """What has gathered is sent, unless something was sent just now."""
        if time.monotonic_ns() - self._sent_at > _SEND_INTERVAL_NS:
            self.ask_to_send()

    @property
    def endpoint(self) -> int:
        """Of this process, in the run."""
        return self._client.endpoint

    def is_of(self, client: NodeClient) -> bool:
        return self._client is client

    def is_of_run(self, other: Trace) -> bool:
        """Whether both are parts of one trace."""
        mine, theirs = self._client.welcome, other._client.welcome
        return mine.get("run") == theirs.get("run")


def who() -> Any:
    loop = _get_running_loop()
    if loop is not None:
        task = current_task(loop)
        if task is not None:
            return task
    return threading.get_ident()
