"""The worker that programs are about."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rlinf_async import Channel, Worker, WorkerGroup
from tests.faults import injections, traffic
from tests.faults.journal import Counters, Journal, all_of

END = -1
"""The number of the messages behind the last one."""


class Subject(Worker):
    """Does what it is told, and keeps a journal of it."""

    def __init__(self, journal: str) -> None:
        super().__init__()
        self.journal = Journal(journal)
        self._sent, self._wanted = Counters(), Counters()
        self._pending: dict[str, int] = {}
        self._groups: dict[str, Any] = {}
        self._held: dict[int, Channel] = {}

    def pid(self) -> int:
        return os.getpid()

    # -- calls --------------------------------------------------------------------------------------------------

    def echo(self, nonce: int, payload: bytes) -> tuple[int, bytes]:
        self.journal.begin("run", nonce)
        return nonce, payload

    async def echo_later(self, nonce: int, payload: bytes, seconds: float) -> tuple[int, bytes]:
        self.journal.begin("run", nonce)
        await asyncio.sleep(seconds)
        return nonce, payload

    async def count(self, nonce: int, count: int, size: int) -> AsyncIterator[tuple[int, int, bytes]]:
        self.journal.begin("run", nonce)
        for number in range(count):
            yield nonce, number, bytes(size)

    async def ask_peer(self, peer: str, nonces: Sequence[int], size: int) -> None:
        """Calls of this worker on the other one."""
        if peer not in self._groups:
            self._groups[peer] = await WorkerGroup.from_group_name(Subject, peer)
        group = self._groups[peer]
        tasks = []
        for nonce in nonces:
            entry = self.journal.begin("call", nonce, peer)
            tasks.append(traffic.started(self.journal, entry, group.echo(nonce, bytes(size)), whole(nonce, size)))
        await all_of(tasks)

    # -- messages -----------------------------------------------------------------------------------------------

    def _message(self, to: str, size: int) -> tuple[int, Any]:
        import torch

        number = self._sent.next(to)
        return number, (number, torch.full((size,), number % 251, dtype=torch.uint8))

    async def send_many(self, to: str, times: int, size: int) -> None:
        tasks = []
        for _ in range(times):
            number, message = self._message(to, size)
            entry = self.journal.begin("send", to, number)
            tasks.append(traffic.started(self.journal, entry, self.send(message, to, 0)))
        await all_of(tasks)

    def send_blocking(self, to: str, times: int, size: int) -> None:
        for _ in range(times):
            number, message = self._message(to, size)
            with self.journal.noted("send", to, number):
                self.send(message, to, 0)

    async def recv_many(self, source: str, times: int, timeout: float | None) -> None:
        self._pending[source] = self._pending.get(source, 0) + times
        tasks = []
        for _ in range(times):
            entry = self.journal.begin("recv", source, self._wanted.next(source))
            task = traffic.started(self.journal, entry, self.recv(source, 0, timeout=timeout), _number)
            task.add_done_callback(lambda _: self._received(source))
            tasks.append(task)
        await all_of(tasks)

    def _received(self, source: str) -> None:
        self._pending[source] -= 1

    def pending(self, source: str) -> int:
        """Receives that wait."""
        return self._pending.get(source, 0)

    async def send_ends(self, to: str, times: int) -> None:
        for work in [self.send((END, None), to, 0) for _ in range(times)]:
            await work

    async def drain(self, source: str) -> None:
        """Receives until nothing is left, and everything that waited has got something."""
        found = 0
        while found != END:
            with self.journal.noted("recv", source, self._wanted.next(source)) as value:
                found = _number(await self.recv(source, 0))
                value.append(found)

    # -- channels -----------------------------------------------------------------------------------------------

    def hold(self, incarnation: int, channel: Channel) -> None:
        """Keeps a channel as it was passed, whatever becomes of it before it is used."""
        self._held[incarnation] = channel

    async def put(
        self, channel: Channel, incarnation: int, numbers: Sequence[int], size: int, deadline: float | None
    ) -> None:
        channel = self._held.get(incarnation, channel)
        await traffic.put(self.journal, channel, incarnation, numbers, size, deadline)

    async def get(self, channel: Channel, incarnation: int, times: int, deadline: float | None) -> None:
        channel = self._held.get(incarnation, channel)
        await traffic.get(self.journal, channel, incarnation, times, deadline)

    # -- faults -------------------------------------------------------------------------------------------------

    def starve(self, seconds: float, spare: int) -> None:
        injections.starve(seconds, spare)

    def sever(self, how: str, which: int) -> int:
        return injections.sever(how, which)

    def fork(self, seconds: float, peer: str) -> None:
        """A child that may do nothing here ends; this method goes on at once."""
        wait = injections.fork(seconds, lambda: self.send(None, peer, 0))
        threading.Thread(target=self._wait_for_child, args=(wait,), daemon=True).start()

    def _wait_for_child(self, wait: Callable[[], None]) -> None:
        with contextlib.suppress(AssertionError), self.journal.noted("fork", self._group_name):
            wait()

    def become_sleep(self) -> None:
        os.execv("/bin/sleep", ["sleep", "60"])

    def swallow(self, payload: bytes) -> None:
        pass


def whole(nonce: int, size: int) -> Any:
    """Checks what ``echo`` has returned, of one rank."""

    def check(results: list[tuple[int, bytes]]) -> None:
        assert results == [(nonce, bytes(size))], f"call {nonce} returned something else"

    return check


def _number(message: tuple[int, Any]) -> int:
    """The number of a message, after a look at its tensor."""
    number, tensor = message
    if tensor is not None:
        low, high = tensor.aminmax()
        assert int(low) == int(high) == number % 251, f"message {number} carries {int(low)} to {int(high)}"
    return number
