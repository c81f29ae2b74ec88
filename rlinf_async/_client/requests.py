"""The table of a client's open requests to daemons, settled by ANSWER frames. A ``DaemonRequest`` is awaitable."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Sequence
from typing import Any, Final, Generic

from rlinf_async import errors
from rlinf_async._client import peer_activity
from rlinf_async._core import frames
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.operations import Answer, CancelFind, Find, LockDevices, Operation, UnlockDevices
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.work import Work

OWN_NODE: Final = -1
"""Value of ``node=`` that means this process's own node."""


class DaemonRequest(Work[Answer], Generic[Answer]):
    """An open request to a daemon, identified by its ``number``."""

    _ends_with_others = False
    _kind = "request"

    def __init__(
        self, client: peer_activity.RequestSender, number: int, operation: Operation[Answer], node: int, what: str = ""
    ) -> None:
        super().__init__()
        self.number = number
        self.operation = operation
        self.node = node
        self._client = client
        self._what = what or type(operation).__name__

    def _describe(self) -> str:
        return self._what

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._client.user_loop

    def _whom(self) -> str:
        return f"the daemon of node {self.node}"

    def _peer_activity(self) -> Work[str]:
        return peer_activity.request(self._client, self.operation, self.number, self.node)

    def _needs(self) -> slow_waits.Needs:
        operation = self.operation
        if isinstance(operation, LockDevices):
            return [Target(TargetKind.LOCK, name=f"devices {', '.join(map(str, operation.devices))}")], True
        if isinstance(operation, Find) and operation.kind != "promise":
            return [Target(TargetKind.NAME, name=operation.name)], True
        return [Target(TargetKind.DAEMON, frames.endpoint(self.node, 0), name=type(operation).__name__)], True


class Requests:
    def __init__(self) -> None:
        self._open: dict[int, DaemonRequest[Any]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, request: DaemonRequest[Answer]) -> DaemonRequest[Answer]:
        self._open[request.number] = request
        return request

    def answer(self, number: int, ok: bool, value: Any) -> None:
        request = self._open.pop(number, None)
        if request is None:
            return
        if isinstance(request.operation, CancelFind | UnlockDevices):
            self._open.pop(request.operation.number, None)  # the daemon does not answer a cancelled request
        if ok:
            request._settle(value)
        else:
            request._settle(error=error_of(value))

    def fail(self, error: Exception, *, node: int | None = None) -> None:
        for number, request in list(self._open.copy().items()):
            if node is None or request.node == node:
                self._open.pop(number, None)  # another thread may have refused it
                # Use a copy, because the client keeps this error, and a raised error would hold the frames that it
                # passes through.
                request._settle(error=copy_of(error))

    def refuse(self, request: DaemonRequest[Any], error: Exception) -> None:
        self._open.pop(request.number, None)
        request._settle(error=copy_of(error))

    def forget(self) -> None:
        """Forget the parent's requests in a forked child."""
        self._open.clear()


def error_of(value: Sequence[str]) -> Exception:
    """Return the exception described by an ANSWER: ``[class name, message]``."""
    name, message = value
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # the class may require more than a message
            return kind(message)
    return RuntimeError(f"{name}: {message}")
