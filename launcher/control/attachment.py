"""``Attachment``: an operator's connection to one daemon of a run, which forwards requests to the other nodes."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._core.operations import Answer, Operation
from rlinf_async._core.segment import close_fds
from rlinf_async._wire.local_socket import connect, peer_of
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import AuthError, ClosedError, DeadlineExceeded, LaunchError

from .run_places import LocalRun

_MOST_OF_TIME: Final = 0.5
"""Share of the remaining time that one request may take; the rest is reserved for later requests."""


class Attachment:
    """Connection to a daemon that has answered; requests fail once the connection is lost.

    ``welcome`` holds the daemon's facts about the run: id, nodes, log folder.  ``silent`` maps each node whose daemon
    did not answer in time to the reason.  ``lost`` resolves to the reason when the connection ends.  ``on_event``
    receives each event from the daemon, with its facts.
    """

    def __init__(self, run: LocalRun, node: int, deadline: float, silent: dict[int, str]) -> None:
        self.run = run
        self.node = node
        self.deadline = deadline
        self.silent = silent
        self.welcome: dict[str, Any] = {}
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._greeted: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.on_event: Callable[[str, dict[str, Any]], None] = lambda what, facts: None
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        try:
            sock = connect(str(run.sockets[node]), waits=False)
        except BlockingIOError as error:
            raise LaunchError(f"{self} listens and accepts no connection: is it stopped?") from error
        except (AuthError, OSError) as error:
            raise LaunchError(f"{self} cannot be reached: {error}") from error
        self.pid, _ = peer_of(sock)
        sock.setblocking(False)
        self._connection = Connection(sock, self._loop, on_frame=self._on_frame, on_closed=self._on_closed)

    def __str__(self) -> str:
        return f"the daemon of node {self.node} of run {self.run.run}"

    @property
    def nodes(self) -> Sequence[dict[str, Any]]:
        """The nodes that the run started with, each with ``node``, ``name``, ``hidden`` and ``facts``."""
        nodes: Sequence[dict[str, Any]] = self.welcome["nodes"]
        return nodes

    def name_of(self, node: int) -> str:
        return next((str(each["name"]) for each in self.nodes if each["node"] == node), f"node {node}")

    def unheard_nodes(self) -> dict[int, str]:
        """Map each node that cannot be asked to the reason: the run has lost it, or it did not answer."""
        return self.silent | {int(each["node"]): f"it is lost: {each['reason']}" for each in self.welcome["lost"]}

    async def greet(self) -> bool:
        """Send HELLO and wait for the welcome; return False, with the reason in ``silent``, if none comes."""
        python = ".".join(map(str, sys.version_info[:3]))
        facts = {"role": "operator", "pid": os.getpid(), "protocol": frames.PROTOCOL, "python": python}
        self._connection.open()
        self._connection.send((frames.HELLO, 0, 0, facts))
        try:
            self.welcome = await self._in_time(self._greeted, str(self), self.node)
        except (DeadlineExceeded, ClosedError, LaunchError) as error:
            self.silent[self.node] = str(error).replace(" of the driver (", " of rlinf-ctl (", 1)
            return False
        if "nodes" not in self.welcome:  # the nodes are still starting
            self.silent[self.node] = f"{self} does not know of the other nodes yet: the run is being started"
            return False
        return True

    async def request(self, operation: Operation[Answer], node: int | None = None) -> Answer:
        """Return the daemon's answer on a node.  Raises DeadlineExceeded, ClosedError, or LaunchError if it refuses."""
        number, target = next(self._numbers), self.node if node is None else node
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self.lost.done():
            raise ClosedError(self.lost.result())
        self._open[number] = answer
        try:
            name, fields = type(operation).__name__, vars(operation)
            self._connection.send((frames.REQUEST, 0, 0, target, number, name, fields))
            return await self._in_time(answer, f"the daemon of node {target} ({self.name_of(target)})", target)
        finally:
            self._open.pop(number, None)

    async def ask_nodes(
        self, operation: Callable[[int], Operation[Answer] | None]
    ) -> tuple[dict[int, Answer], dict[int, str]]:
        """Send requests to all nodes in parallel; return the nodes' answers, and the reasons for missing answers."""
        answers: dict[int, Answer] = {}
        missing = self.unheard_nodes()

        async def ask(node: int) -> None:
            asked = operation(node)
            try:
                if asked is not None:
                    answers[node] = await self.request(asked, node)
            except DeadlineExceeded as error:
                missing[node] = self.silent[node] = str(error)  # later requests skip this node
            except (ClosedError, LaunchError) as error:
                missing[node] = str(error)

        async with asyncio.TaskGroup() as tasks:
            for each in self.nodes:
                if each["node"] not in missing:
                    tasks.create_task(ask(each["node"]))
        return answers, missing

    def close(self) -> None:
        self._connection.close()
        for future in (self.lost, self._greeted):
            future.cancel()

    async def _in_time(self, answer: asyncio.Future[Answer], daemon: str, node: int) -> Answer:
        now = self._loop.time()
        timeout = max(0.0, self.deadline - now) * _MOST_OF_TIME
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            text = f"{daemon} did not answer within {timeout:.1f} s: {self._why_silent(node)}"
            raise DeadlineExceeded(text) from None

    def _why_silent(self, node: int) -> str:
        """Describe a local daemon's state according to the kernel, with the command that resumes a stopped daemon."""
        pid = self.pid
        if node != self.node:
            try:
                with connect(str(self.run.sockets[node]), waits=False) as sock:
                    pid, _ = peer_of(sock)
            except (KeyError, AuthError, OSError):  # the daemon runs on another machine or has ended
                return "is it stopped?"
        state = _state_of(pid)
        if state in ("T", "t"):
            return f"it is stopped: kill -CONT {pid}"
        return f"its process {pid} is not stopped" if state else f"the state of its process {pid} cannot be read"

    def _on_frame(self, frame: list[Any], fds: list[int]) -> None:
        close_fds(fds)
        kind = frame[0]
        if kind == frames.HELLO:
            _settle(self._greeted, frame[3])
        elif kind == frames.EVENT and frame[4] == "refused":
            _fail(self._greeted, LaunchError(str(frame[5]["error"][1])))
        elif kind == frames.EVENT:
            self.on_event(frame[4], frame[5])
        elif kind == frames.ANSWER and (answer := self._open.get(frame[4])) is not None:
            if frame[5]:
                _settle(answer, frame[6])
            else:
                _fail(answer, LaunchError(str(frame[6][1])))

    def _on_closed(self, reason: str) -> None:
        text = f"the connection to {self} has ended ({reason})"
        _settle(self.lost, text)
        for answer in (self._greeted, *self._open.values()):
            _fail(answer, ClosedError(text))


def _state_of(pid: int) -> str:
    """Return the kernel's letter for a process's state; empty if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark the exception as retrieved, because asyncio logs unretrieved ones


@asynccontextmanager
async def attached(run: LocalRun, timeout: float) -> AsyncIterator[Attachment]:
    """Attach to the first local daemon that answers; ``timeout`` covers later requests, too.  Raises LaunchError."""
    deadline = asyncio.get_running_loop().time() + timeout
    silent: dict[int, str] = {}
    for node in sorted(run.sockets):
        try:
            attachment = Attachment(run, node, deadline, silent)
        except LaunchError as error:
            silent[node] = str(error)
            continue
        try:
            if await attachment.greet():
                yield attachment
                return
        finally:
            attachment.close()
    reasons = "".join(f"\n  {reason}" for reason in silent.values())
    raise LaunchError(f"no daemon of run {run.run} on this machine answers:{reasons}")
