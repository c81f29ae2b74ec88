"""The in-process queue of ``Channel.create(..., local=True)``: no daemon; items are neither pickled nor copied."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections import deque
from typing import Any, Final

from rlinf_async._channels.batching import emptied
from rlinf_async._channels.queue_errors import error_of
from rlinf_async._channels.request import Get, Put, QueueDestination, QueueQuery, QueueRequest
from rlinf_async._channels.state.actions import ACCEPTED, DELIVER, Step
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_counts import QueueCounts
from rlinf_async._channels.state.refusals import refusal
from rlinf_async._core import process
from rlinf_async._core.frames import NOWAIT, demand_of

_ME: Final = 1


class LocalQueue(QueueDestination):
    """The queue of a local channel: executes requests on the caller's thread, and passes items on without copying."""

    def __init__(self, token: str, name: str, maxsize: int, max_bytes: int) -> None:
        self._pid = process.pid
        self.token = token
        self.name = name
        self.max_bytes = max_bytes
        self._queue = Queue(maxsize, max_bytes)
        self._numbers = itertools.count(1)
        self._requests: dict[int, QueueRequest[Any]] = {}
        self._lock = threading.RLock()
        self._given_back: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<LocalQueue {self.name} [{self._queue!r}]>"

    def start(self, request: QueueRequest[Any]) -> None:
        self._check_process()
        # Return dropped items first, because this request must find them in their places.
        self._withdraw_forgotten()
        request.destination = self
        queue = self._queue
        with self._lock:
            if isinstance(request, QueueQuery):
                steps: list[Step] = []
                if request.word == "size":
                    found: Any = (queue.size(request.key), queue.full(request.key))
                elif request.word == "peek":
                    found = [
                        (item.weight, functools.partial(self.decode, item.body, [])) for item in queue.peek(request.key)
                    ]
                else:
                    number, count = request.facts
                    queue.confirm(_ME, number, count, steps)
                    found = None
            elif isinstance(request, Put):
                number = self._enter(request)
                steps = queue.put(
                    _ME, number, request.key,
                    request.weight, request.nbytes, body=(request.carried,), nowait=request.mode == NOWAIT,
                )  # fmt: skip
            else:
                assert isinstance(request, Get)
                number = self._enter(request)
                steps = queue.get(_ME, number, request.key, **demand_of(request.target))
        if isinstance(request, QueueQuery):
            request._settle(found)
        self._follow(steps)

    def _check_process(self) -> None:
        # A forked child has a copy of the parent's queue, which would look as if the two shared it.
        if self._pid != process.pid:
            raise process.forked(f"channel '{self.name}'", self._pid)

    def _enter(self, request: QueueRequest[Any]) -> int:
        number = request.number = next(self._numbers)
        self._requests[number] = request
        return number

    def withdraw(self, request: QueueRequest[Any]) -> None:
        self._withdraw(request.number)

    def withdraw_later(self, request: QueueRequest[Any]) -> None:
        self._given_back.append(request.number)
        try:
            asyncio.get_running_loop().call_soon(self._withdraw_forgotten)
        except RuntimeError:
            pass  # the next request withdraws the items

    def _withdraw(self, number: int) -> None:
        with self._lock:
            self._requests.pop(number, None)
            steps = self._queue.cancel(_ME, number)
        self._follow(steps)

    def _withdraw_forgotten(self) -> None:
        for number in emptied(self._given_back):
            self._withdraw(number)

    def recall(self, put: Put) -> bool:
        # Take the lock, because another thread may be admitting the put at this moment.
        with self._lock:
            client = self._queue.clients.get(_ME)
            return client is not None and put.number in self._requests and put.number not in client.puts

    def taken(self, get: Get[Any]) -> None:
        with self._lock:
            steps = self._queue.taken(_ME, [(get.number, get.had)])
        self._follow(steps)

    def decode(self, body: Any, fds: list[int]) -> Any:
        return body[0]

    def counts(self) -> QueueCounts:
        self._check_process()
        with self._lock:
            return self._queue.counts()

    def close(self, discard: bool) -> None:
        self._check_process()
        with self._lock:
            steps = self._queue.close(discard=discard)
        self._follow(steps)

    def _follow(self, steps: list[Step]) -> None:
        for action, subject in steps:
            request = self._requests.pop(subject.number, None)
            if request is None:
                continue
            if action == ACCEPTED:
                request._settle()
            elif action == DELIVER:
                assert isinstance(request, Get)
                for item in subject.items:
                    request.deliver(item.body, [], item is not subject.items[-1], item.redelivered)
            else:
                request.reject(error_of(*refusal(action, subject, self.name, self.max_bytes)))
        self._withdraw_forgotten()
