"""``follow``: the weights that a trainer publishes, in a rollout worker's model."""

from __future__ import annotations

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
    """Follow the weights that a worker of another group publishes, in whole versions::

        async with follow(self.policy, of="trainer") as weights:       # version 1 is in the model
            async with weights.reading() as version:                   # nothing is applied meanwhile
                samples = self.collect(), version

    What the trainer waits for before it enters ``publish`` cannot come from here: entering waits for version 1.

    Args:
        model: a module, TensorDict or nested dict, whose tensors get the weights.
        of: the trainer's group, whose rank 0 sends; or group and rank.  It may be launched later.
        name: as that of ``publish``.
        timeout: seconds that entering waits for version 1, once the group is there.
        apply: ``"copy"``, the model's tensors are overwritten, or ``"map"``, they come to stand in the shared memory
            that the trainer has written, and must not be written into.
        verify: as that of ``publish``, at both ends.
        strict_dtype: refuse weights in another dtype than the model's, which are cast otherwise.
        strip_prefix: taken off the names of the model's tensors that begin with it, such as ``"_orig_mod."``.
        rename: the trainer's names by the model's own, of tensors or of modules; or a function of the model's name.
        shard: ``(mesh, placements)`` of tensors that are this rank's shards and no DTensors, or a function of (name,
            tensor) that gives them; a DTensor gets its part without.
        ack_timeout: seconds that this side waits for the trainer's answers (60).

    Returns:
        A ``Following``, to be entered by ``async with`` or ``with``; or left as it is, until ``close()``.

    Raises:
        RuntimeError: this process is no worker, or publishes or follows weights of that name there already.
        ConfigError: there is no such option, or it has no such value.
        TypeError: ``of`` names no worker.
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
    """Followed weights. Entering waits for version 1; when the trainer leaves, the model keeps its version.

    A background thread applies each version as soon as there are no readers, so that a blocking method delays no
    version.
    """

    _use = "followed from"

    def __init__(
        self, model: Any, group: str, rank: int, name: str, timeout: float | None, options: SyncOptions
    ) -> None:
        """Not for users: ``follow``."""
        super().__init__(name, [group])
        self._timeout = timeout
        try:
            self._thread = LoopThread(f"weights of {name}")
        except BaseException:  # there may be too many
            self._give_name_back()
            raise
        self._link = WorkerLink(group, rank, name)
        self._subscriber = Subscriber(self._link, model, model_id=name, **options.for_subscriber())
        self._reception = self._subscriber._reception
        self._tasks = Tasks(self._thread.loop, self._on_loop)
        self._met = self._tasks.run(self._meet(), f"version 1 of '{name}' from {group}:{rank}", abandonable=False)

    def __repr__(self) -> str:
        return f"<Following of '{self._name}' from {self._link.label}>"

    async def _meet(self) -> None:
        await self._link.opened.async_wait()
        self._link.send([messages.JOIN])
        try:
            await self._subscriber.begin(None)
        except Exception:
            if self._link.error is None:  # the trainer offers the next version too, which a mended model takes
                self._subscriber.serve()
            raise
        self._subscriber.serve()

    def reading(self, timeout: float | None = None) -> Reading:
        """``async with`` or ``with`` block around a use of the model: no update is applied meanwhile.

        Its value is the version, to be stored with the samples. Before version 1 it waits for that, at most ``timeout``
        seconds; None: as long as ``follow`` would.

        Raises:
            ClosedError: this is closed.
            WeightMismatch, Exception: on entering: version 1 does not fit, or will not come.
            DeadlineExceeded: on entering: version 1 has not come, or an update was being applied for that long.
            TransferFailed: on entering: the last update broke off half way, and no whole version has come since.
        """
        self._check_open()
        if self._subscriber.version:
            return self._subscriber.reading(timeout)
        return Reading(self._subscriber.gate, self._timeout if timeout is None else timeout, self._met)

    def wait_version(self, version: int, timeout: float | None = None) -> Any:
        """Wait until this version, or a later one, is applied; in a coroutine a ``Work``.

        Raises:
            DeadlineExceeded: it has not come within ``timeout`` seconds.
            PeerLost, ClosedError: the trainer has ended, or has left; or this is closed.
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
        self._tasks.start_no_more()  # a thread may have seen this open; its task would never end
        await self._tasks.settle()
        await self._subscriber.close()
