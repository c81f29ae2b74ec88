"""``follow``: loads the weights that a trainer publishes into a rollout worker's model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._client.tasks import Tasks
from rlinf_async._core import clock
from rlinf_async._worker import context
from rlinf_async.errors import ClosedError, DeadlineExceeded
from rlinf_async.weights.links.worker_link import WorkerLink
from rlinf_async.weights.plane.subscriber import Subscriber
from rlinf_async.weights.schemes.sync_options import SyncOptions
from rlinf_async.weights.scope import Scope
from rlinf_async.weights.state import messages
from rlinf_async.weights.state.versions import Versioned
from rlinf_async.weights.waiting.conditions import Reading
from rlinf_async.weights.waiting.execution import check_seconds, outlast
from rlinf_async.work import blocking


def follow(
    model: Any, of: str | tuple[str, int], *, name: str = "policy", timeout: float | None = 60.0, **options: Any
) -> Following:
    """Follow the weights that a worker of another group publishes, one complete version at a time::

        async with follow(self.policy, of="trainer") as weights:       # the model has version 1
            async with weights.reading() as version:                   # no update is applied in this block
                samples = self.collect(), version

    Entering waits for version 1, so the trainer must enter ``publish`` without waiting for this worker.

    Args:
        model: a module, TensorDict or nested dict, whose tensors receive the weights.
        of: the trainer's group, whose rank 0 sends; or a group and rank. The group may be launched later.
        name: name of the weights, as given to ``publish``.
        timeout: seconds that entering waits for version 1 once the group exists.
        apply: ``"copy"`` overwrites the model's tensors; ``"map"`` remaps them to the shared memory that the trainer
            has written, which must not be modified.
        verify: as for ``publish``; use the same value on both sides.
        strict_dtype: refuse weights whose dtype differs from the model's instead of casting them.
        strip_prefix: prefix to remove from the names of the model's tensors, such as ``"_orig_mod."``.
        rename: maps the model's tensor or module names to the trainer's; a dict or a function.
        shard: ``(mesh, placements)`` of plain tensors that are this rank's shards, or a function of (name, tensor) that
            returns them; DTensors need none.
        ack_timeout: seconds that this side waits for the trainer's answers (60).

    Returns:
        A ``Following``, to be used with ``async with`` or ``with``, or without a block until ``close()``.

    Raises:
        RuntimeError: this process is not a worker, or already publishes or follows weights of that name to or from it.
        ConfigError: an option is unknown, or its value is invalid.
        TypeError: ``of`` does not name a worker.
    """
    match of:
        case (str(group), int(rank)) if rank >= 0:
            pass
        case str(group):
            rank = 0
        case _:
            raise TypeError(f"of= is the trainer's group, or (group, rank); got {of!r}")
    checked = SyncOptions.of(options, "follow()")
    honoured = ("apply", "verify", "strict_dtype", "strip_prefix", "rename", "shard", "ack_timeout")
    checked.refuse_others(*honoured, owner="follow()", why="the trainer decides: publish() takes it")
    check_seconds(timeout)
    return Following(model, group, rank, name, timeout, checked)


class Following(Versioned, Scope):
    """Followed weights. Entering waits for version 1; when the trainer closes, the model keeps its current version.

    A background thread applies each version as soon as there are no readers, so that a blocking method does not delay
    updates.
    """

    _use = "followed from"

    def __init__(
        self, model: Any, group: str, rank: int, name: str, timeout: float | None, options: SyncOptions
    ) -> None:
        """Internal; use ``follow`` to create an instance."""
        super().__init__(name, [group])
        self._timeout = timeout
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_name_back)
            self._thread = LoopThread(f"weights of {name}")
            undo.callback(self._thread.stop)
            self._link = WorkerLink(group, rank, name)
            undo.callback(self._link.close)
            self._subscriber = Subscriber(self._link, model, model_id=name, **options.for_subscriber())
            self._reception = self._subscriber._reception
            self._tasks = Tasks(self._thread.loop, self._on_loop)
            self._met = self._tasks.run(self._meet(), f"version 1 of '{name}' from {group}:{rank}", abandonable=False)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<Following of '{self._name}' from {self._link.label}>"

    async def _meet(self) -> None:
        await self._link.opened.async_wait()
        self._link.send([messages.JOIN])
        try:
            await self._subscriber.begin(None)
        except Exception:
            if self._link.error is None:
                # The trainer will also offer the next version, which a corrected model may accept.
                self._subscriber.serve()
            raise
        self._subscriber.serve()

    def reading(self, timeout: float | None = None) -> Reading:
        """Return an ``async with`` or ``with`` block in which the model is used and no update is applied.

        The block's value is the version, to be stored with the samples. Before version 1, entering waits for that
        version, at most ``timeout`` seconds; None waits as long as ``follow`` would.

        Raises:
            ClosedError: ``close`` was called.
            WeightMismatch, Exception: on entering: version 1 does not fit, or will not arrive.
            DeadlineExceeded: on entering: version 1 is late, or an update was still being applied at the deadline.
            TransferFailed: on entering: the last update failed midway, and no complete version has followed yet.
        """
        self._check_open()
        if self._subscriber.version:
            return self._subscriber.reading(timeout)
        return Reading(self._subscriber.gate, self._timeout if timeout is None else timeout, self._met)

    def wait_version(self, version: int, timeout: float | None = None) -> Any:
        """Wait until this version or a later one has been applied; in a coroutine, return a ``Work``.

        Raises:
            DeadlineExceeded: no such version has arrived within ``timeout`` seconds.
            PeerLost, ClosedError: the trainer has died or closed; or ``close`` was called here.
        """
        self._check_open()
        check_seconds(timeout)
        waiting = self._wait_version(version, timeout)
        return blocking(self._tasks.run(waiting, f"version {version} of '{self._name}'", abandonable=True))

    async def _wait_version(self, version: int, timeout: float | None) -> None:
        begun = clock.monotonic()
        if not self._subscriber.version:
            await self._met.async_wait(timeout)
        await self._subscriber.wait_version(version, clock.rest(timeout, begun))

    def _on_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._thread.call(callback)
        except RuntimeError:
            raise ClosedError(f"{self!r} is closed") from None

    async def _enter(self) -> None:
        await self._link.opened.async_wait()
        try:
            await self._met.async_wait(self._timeout)
        except DeadlineExceeded as error:
            identity = context.identity
            group = "" if identity is None else identity.group_name
            raise DeadlineExceeded(
                f"{error} ({self._link.label})\n  fix: the trainer's publish(to=) must name group '{group}', and enter "
                "or send() before this worker waits"
            ) from None

    async def _end(self) -> None:
        try:
            await outlast(self._tasks.run(self._close_subscriber(), f"the end of {self!r}", abandonable=False))
        finally:
            self._thread.stop()
            self._tasks.loop_ended()

    async def _close_subscriber(self) -> None:
        # Refuse new tasks first, because a thread may still see this object as open and start a task that would never
        # end.
        self._tasks.start_no_more()
        await self._tasks.settle()
        await self._subscriber.close()
