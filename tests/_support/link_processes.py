"""Several processes with links to each other; the test carries their facts, as the daemons would."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgpack

from tests._support.fake_hosts import CHECKOUT

Start = Callable[[list[str], list[int]], "subprocess.Popen[Any]"]
"""Starts a command that inherits some files."""


def start_here(command: list[str], files: list[int]) -> subprocess.Popen[Any]:
    return subprocess.Popen(command, pass_fds=files, cwd=CHECKOUT)


class Peers:
    """Processes, by name; every two of them may link, in the way of that kind."""

    def __init__(self, kind: str = "gloo") -> None:
        self._kind = kind
        self._controls: dict[str, socket.socket] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._readers: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._born: dict[str, Future[int]] = {}
        self._tickets = itertools.count()
        self._open: dict[int, Future[Any]] = {}
        self._linked: set[frozenset[str]] = set()
        self._frozen: set[str] = set()

    def start(self, addresses: dict[str, str], start: Start = start_here) -> None:
        """One import of torch, then a process for each name."""
        ends = {name: socket.socketpair() for name in addresses}
        arguments = [f"{addresses[name]}={theirs.fileno()}" for name, (_, theirs) in ends.items()]
        command = [sys.executable, "-m", "tests._support.link_process", *arguments]
        self._processes.append(start(command, [theirs.fileno() for _, theirs in ends.values()]))
        for name, (ours, theirs) in ends.items():
            theirs.close()
            self._controls[name], self._locks[name], self._born[name] = ours, threading.Lock(), Future()
            reader = threading.Thread(target=self._read, args=(name,))
            reader.start()
            self._readers.append(reader)
        for name in addresses:
            self._born[name].result(30)

    def freeze(self, name: str) -> None:
        self._frozen.add(name)
        os.kill(self._pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._frozen.discard(name)
        os.kill(self._pid(name), signal.SIGCONT)

    def kill(self, name: str) -> None:
        self._frozen.discard(name)
        os.kill(self._pid(name), signal.SIGKILL)

    def _pid(self, name: str) -> int:
        """As the process itself sees it."""
        return self._born[name].result(0)

    def _read(self, name: str) -> None:
        unpacker = msgpack.Unpacker()
        with contextlib.suppress(OSError):
            while data := self._controls[name].recv(1 << 16):
                unpacker.feed(data)
                for kind, *rest in unpacker:
                    self._hear(name, kind, *rest)

    def _hear(self, name: str, kind: str, *rest: Any) -> None:
        match kind, *rest:
            case "born", pid:
                self._born[name].set_result(pid)
            case "facts", peer, facts:
                self._say(peer, "facts", name, facts)
            case "done", ticket, value, "":
                self._open.pop(ticket).set_result(value)
            case "done", ticket, _, error:
                self._open.pop(ticket).set_exception(RuntimeError(error))

    def _say(self, name: str, *message: Any) -> None:
        with self._locks[name], contextlib.suppress(OSError):  # it may be dead
            self._controls[name].sendall(msgpack.packb(message))

    def _ask(self, name: str, order: str, *rest: Any) -> Future[Any]:
        ticket = next(self._tickets)
        future = self._open[ticket] = Future()
        self._say(name, order, ticket, *rest)
        return future

    def _link(self, one: str, other: str) -> None:
        if frozenset((one, other)) not in self._linked:
            self._linked.add(frozenset((one, other)))
            self._say(one, "link", other, one < other, self._kind)
            self._say(other, "link", one, other < one, self._kind)

    def send(self, source: str, target: str, number: int, nbytes: int) -> Future[float]:
        """Its result is the seconds that it took; its error a RuntimeError of what was raised there."""
        self._link(source, target)
        return self._ask(source, "send", target, number, nbytes)

    def receive(self, source: str, target: str, number: int, nbytes: int) -> Future[float]:
        """As ``send``; also checks what has arrived."""
        self._link(source, target)
        return self._ask(target, "receive", source, number, nbytes)

    def transfer(self, source: str, target: str, number: int, nbytes: int) -> list[Future[float]]:
        return [self.send(source, target, number, nbytes), self.receive(source, target, number, nbytes)]

    def discard(self, name: str, peer: str, text: str = "the deadline has passed") -> None:
        self._say(name, "discard", peer, text)

    def count(self, name: str) -> list[int]:
        """Its threads and its files."""
        return list(self._ask(name, "count").result(5))

    def close(self) -> None:
        for control in self._controls.values():
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
        for name in list(self._frozen):
            self.thaw(name)
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(5)
        for control in self._controls.values():
            control.close()


@contextlib.contextmanager
def peers(addresses: dict[str, str] | None = None, start: Start = start_here, kind: str = "gloo") -> Iterator[Peers]:
    found = Peers(kind)
    try:
        if addresses:
            found.start(addresses, start)
        yield found
    finally:
        found.close()


def finish(futures: Sequence[Future[Any]], timeout: float = 10) -> list[Any]:
    return [future.result(timeout) for future in futures]
