"""``CallTransport``: delivers weights by calling a method of the object that holds the model."""

from __future__ import annotations

import asyncio
import copy
import inspect
from asyncio import _get_running_loop as running_loop
from collections.abc import Awaitable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rlinf_async.errors import DeadlineExceeded
from rlinf_async.group import WorkerGroup
from rlinf_async.weights.model.param_tree import ParamTree, is_tensordict, memory_of
from rlinf_async.weights.waiting.execution import SyncAdapter, at_once
from rlinf_async.work import Work

_NONE: Final = object()


class CallTransport:
    """The base class of transports that call a method; at most one call may be open.

    The worker's exception is raised here unchanged, and its death raises ``WorkerDied``. If the worker's method has a
    parameter ``version``, it receives the version of the weights.

    Args:
        timeout: seconds that the call may take; None for no limit.
    """

    carries_version: Final = True

    def __init__(self, timeout: float | None = 60.0) -> None:
        self.timeout = timeout
        self._adapter = SyncAdapter()
        self._pending: Any = _NONE
        self._open: Work[Any] | None = None
        """The last call, awaited or not."""
        self._patience = timeout
        self.nbytes = 0
        """Size in bytes of the last weights sent."""

    @property
    def callee(self) -> Any:
        """Object to call; None if a send does nothing."""
        raise NotImplementedError

    @property
    def how(self) -> Any:
        """The property, besides the callee, in which two transports of one class may differ."""
        return None

    def call(self, callee: Any, weights: Any, version: int | None = None) -> Any:
        """Call the callee; return an awaitable or the result."""
        raise NotImplementedError

    def _call(self, weights: Any, version: int | None, timeout: float | None) -> Any:
        callee = self.callee
        self._patience = self.timeout if timeout is None else timeout
        self.nbytes = 0 if callee is None else size_of(weights)
        if callee is None:
            return None
        made = self.call(callee, detached(weights) if isinstance(callee, WorkerGroup) else weights, version)
        if inspect.iscoroutine(made) and running_loop() is not None:
            made = self._adapter.run(made, self._describe())  # start now, even if nobody awaits it
        self._open = made if isinstance(made, Work) else None
        return made

    def _describe(self) -> str:
        return "an update of weights"

    def send_weights(
        self, model_id: str, weights: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Call, and wait for the call to end.

        Args:
            version: version of the weights; None lets the worker count versions itself.
            timeout: seconds for this call; by default the transport's timeout.
        """
        return self._adapter.run(self._finish(self._call(weights, version, timeout)), self._describe())

    def send_weights_async(
        self, model_id: str, weights: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Start the call; on return the weights have been copied. ``wait_ack`` waits for the call to end."""
        callee = self.callee  # a group's call copies them itself
        ours = weights if callee is None or isinstance(callee, WorkerGroup) else copied(weights)
        self._pending = self._call(ours, version, timeout)
        return at_once()

    @property
    def is_pending(self) -> bool:
        """True if the end of the last send has not been awaited yet."""
        return self._pending is not _NONE

    def wait_ack(self) -> Any:
        """Wait for the end of the call made by ``send_weights_async``.

        Raises:
            RuntimeError: nothing has been sent.
            DeadlineExceeded: the call took too long, and has been cancelled.
            Exception: raised by the call.
        """
        if not self.is_pending:
            raise RuntimeError("No pending future. Did you call send_weights_async?")
        pending, self._pending = self._pending, _NONE
        return self._adapter.run(self._finish(pending), self._describe())

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """Return None, because the call itself carries the weights."""
        return at_once()

    def check_connection(self) -> bool:
        """True if the callee exists, and has neither died nor been closed."""
        return is_reachable(self.callee)

    def give_up(self) -> None:
        """Cancel the open call."""
        self._pending = _NONE
        if self._open is not None:
            cancel(self._open)

    def close(self) -> Any:
        """Cancel the open call; in a coroutine, return a ``Work``."""
        self.give_up()
        self._adapter.release()
        return at_once()

    async def _finish(self, result: Any) -> None:
        await finish(result, self._patience, self._describe())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_adapter": None, "_pending": None, "_open": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._adapter, self._pending = SyncAdapter(), _NONE


async def finish(result: Any, timeout: float | None, what: str) -> Any:
    """Return the result of a call, awaiting it if necessary; cancelling the last waiter cancels the call.

    Raises:
        DeadlineExceeded: the call took longer than ``timeout`` seconds.
        Exception: raised by the call.
    """
    if isinstance(result, Work):
        try:
            return await result.async_wait(timeout)
        except (asyncio.CancelledError, DeadlineExceeded):
            cancel(result)
            raise
    if not inspect.isawaitable(result):
        return result
    return await _awaited(result, timeout, what)


async def _awaited(result: Awaitable[Any], timeout: float | None, what: str) -> Any:
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            return await result
    except TimeoutError:
        if not deadline.expired():
            raise
        raise DeadlineExceeded(f"{what} was not done within {timeout:g} s") from None


def cancel(work: Work[Any]) -> None:
    """Cancel a call on every rank, as far as possible."""
    if not work.done():
        work._abandon()


def told(method: Any, version: int | None) -> dict[str, int]:
    """Return ``version=`` as an argument if the method has a parameter of that name, else no argument."""
    try:
        takes_it = version is not None and "version" in inspect.signature(method).parameters
    except (TypeError, ValueError):  # not a function, or without a signature
        takes_it = False
    return {"version": version} if takes_it and version is not None else {}


def method_of(callee: Any, name: str) -> Any:
    """Return a method as its author wrote it; for a group, the method of the worker's class."""
    return getattr(callee._worker_cls if isinstance(callee, WorkerGroup) else callee, name, None)


def detached(weights: Any) -> Any:
    """Return the same tensors without their autograd graphs, which cannot be pickled; other values are unchanged."""
    if isinstance(weights, torch.Tensor):
        return weights.detach()
    if isinstance(weights, dict):
        return {key: detached(value) for key, value in weights.items()}
    return weights.data if is_tensordict(weights) else weights


def copied(weights: Any) -> Any:
    """Return a copy of the weights and all other values, in which tied tensors are still tied."""
    clones: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        memory = memory_of(tensor)
        if memory not in clones:
            clones[memory] = tensor.detach().clone(), tensor  # keeps the tensor alive, because its id is in the key
        return clones[memory][0]

    def copy_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return clone(value)
        if is_tensordict(value):
            return value.data.apply(clone)
        if isinstance(value, dict):
            same = copy.copy(value)  # keeps the class and torch's metadata of state dicts
            same.update({key: copy_of(part) for key, part in value.items()})
            return same
        if isinstance(value, Mapping):
            return {key: copy_of(part) for key, part in value.items()}
        # Torch's own deep copy of a parameter rejects sparse parameters and loses ties to other tensors.
        found = value.parameters() if isinstance(value, nn.Module) else ()
        memo = {id(each): nn.Parameter(clone(each), each.requires_grad) for each in found if not is_lazy(each)}
        return copy.deepcopy(value, memo)

    return copy_of(weights)


def size_of(weights: Any) -> int:
    """Return the total size of the tensors, counting tied ones once; 0 for anything but weights."""
    try:
        return ParamTree.of(weights).nbytes
    except (KeyError, ValueError):
        return 0


def is_reachable(handle: Any) -> bool:
    """True if a worker can be called; objects other than this framework's handles count as reachable."""
    if not isinstance(handle, WorkerGroup):
        return handle is not None
    members = handle._members
    return not members.closed and not any(rank in members.deaths for rank in handle._ranks)
