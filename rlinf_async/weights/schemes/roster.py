"""``WorkerRoster``: the workers of one sender, each with its id and its transport."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlinf_async.weights.schemes.configuration import Configuration
from rlinf_async.weights.transports.calls import finish
from rlinf_async.weights.transports.transport import TransportBackend


class WorkerRoster:
    """The workers of a ``WeightSender``."""

    _transport: TransportBackend | None
    """Transport to all workers that have no transport of their own."""

    _transports: dict[int, TransportBackend]

    def __init__(self, scheme: Configuration) -> None:
        self._scheme = scheme
        self._transports = {}
        self._transport = None
        self._model_id = "policy"

    @property
    def worker_ids(self) -> list[int]:
        return list(self._transports)

    @property
    def _is_complete(self) -> bool:
        """True if all workers are known."""
        return True

    async def _find_workers(self, timeout: float | None) -> None:
        """Find the workers that are not known yet; raise DeadlineExceeded after ``timeout`` seconds."""

    def _register_worker(self, worker_idx: int, pipe_or_context: Any) -> None:
        if worker_idx not in self._transports:
            self._transports[worker_idx] = self._way_to(pipe_or_context)

    def _way_to(self, pipe_or_context: Any) -> TransportBackend:
        return self._scheme.create_transport(pipe_or_context)

    def _replaced(self, worker_id: int, pipe_or_context: Any) -> TransportBackend:
        """Replace a worker's transport; return the old one."""
        old = self._targets(worker_id)[worker_id]
        self._transports[worker_id] = self._way_to(pipe_or_context)
        return old

    def _iterate_transports(self, worker_ids: int | Sequence[int] | None = None) -> Iterator[TransportBackend]:
        yield from self._targets(worker_ids).values()

    def _targets(self, worker_ids: int | Sequence[int] | None) -> dict[int, TransportBackend]:
        """Return the transports to these workers, or to all.

        Raises:
            RuntimeError: there are no workers.
            ValueError: a worker is not registered.
        """
        if worker_ids is None:
            if self._transports:
                return dict(self._transports)
            if self._transport is None:
                raise RuntimeError(
                    f"no worker is registered for '{self._model_id}' of {type(self._scheme).__name__}: "
                    "init_on_sender() is told who they are"
                )
            return {0: self._transport}
        targets = {}
        for worker_id in [worker_ids] if isinstance(worker_ids, int) else worker_ids:
            if worker_id not in self._transports:
                raise ValueError(f"Worker {worker_id} not registered")
            targets[worker_id] = self._transports[worker_id]
        return targets


async def close_all(transports: Iterable[TransportBackend]) -> None:
    """Close the transports that can be closed, all at the same time; then raise the first error, if any."""
    ends = await asyncio.gather(*map(close_one, transports), return_exceptions=True)
    for error in filter(None, ends):
        raise error


async def close_one(end: Any) -> None:
    close = getattr(end, "close", None)
    if close is not None:
        with contextlib.suppress(OSError):
            await finish(close(), None, f"the closing of {end!r}")
