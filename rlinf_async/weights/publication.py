"""``publish``: sends a trainer's weights to the workers that follow them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async._client.requests import DaemonRequest
from rlinf_async._core import clock, operations
from rlinf_async._worker import context
from rlinf_async.errors import ClosedError, NodeLost
from rlinf_async.weights.followers import Followers
from rlinf_async.weights.model.gather import gathers_here
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.param_tree import ParamTree
from rlinf_async.weights.model.source import exhaust, is_streamed
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.plane.sends import Sends
from rlinf_async.weights.schemes.sharded import are_sharded
from rlinf_async.weights.schemes.sync_options import SyncOptions
from rlinf_async.weights.scope import Scope
from rlinf_async.weights.state.sync_report import SyncReport
from rlinf_async.weights.state.versions import number_of
from rlinf_async.weights.waiting.execution import check_seconds

_BEHIND: Final = 2
"""Default number of versions by which followers may lag behind."""


def publish(model: Any, to: str | Sequence[str], *, name: str = "policy", **options: Any) -> Publication:
    """Publish a trainer's weights to the workers of other groups that ``follow`` them::

        async with publish(self.model, to="rollout") as weights:       # followers can now get version 1
            for batch in batches:
                self.step(batch)
                version = await weights.send()                         # staged: the next step may change the model

    Args:
        model: a module, a TensorDict, a nested dict of tensors, or a function. If it is sharded (FSDP, DTensor), every
            rank of the trainer publishes it, and rank 0 sends the combined weights; for other models, ranks other than
            0 do nothing. A function that returns an iterator of ``(name, tensor)`` is called on every rank for each
            version, twice for the first; rank 0 sends the tensors that it yields there.
        to: name or names of groups. A group may be launched later, and relaunched under the same name.
        name: name of the weights, the same at both ends; needed if a worker publishes or follows several models.
        apply: ``"copy"``, or ``"map"`` if followers use ``"map"``.
        slots: number of versions kept in shared memory, 2 to 64; each takes the size of the weights.
        transport_dtype: dtype in which floating-point tensors are sent, ``torch.bfloat16`` or its name, or a function
            of (name, dtype); by default each tensor's own dtype.
        verify: ``"sha256"`` lets the trainer check followers' models after each applied version.
        select: ``"trainable"`` omits tensors without gradients; or a function of (name, tensor); by default ``"all"``.
        strip_prefix: prefix to remove from the names of the model's tensors, such as ``"module."``.
        rename: dict from the model's names of tensors or modules to transport names; or a function.
        ack_timeout: seconds within which followers must apply a version (60).
        behind: number of earlier versions that may be pending when a version is sent (2). Followers take the newest
            version and skip the others. The log and ``delivered()`` name a follower that lags further behind, and
            neither the trainer nor other followers wait for it. With 0, a send waits until the previous version is
            delivered, so followers skip none.

    Experiences ``of`` this group use the same version number (``Experience.create(of=)``).

    Entering does not wait. Enter before waiting for any result from followers, because they begin with version 1.

    Returns:
        A ``Publication``, to be used with ``async with`` or ``with``, or without a block until ``close()``.

    Raises:
        RuntimeError: this process is not a worker, or already publishes or follows weights of that name with a group.
        ConfigError: an option is unknown, or its value is invalid.
        TypeError: ``to`` does not name groups.
    """
    groups = [to] if isinstance(to, str) else to
    if not isinstance(groups, Sequence) or not all(isinstance(group, str) for group in groups):
        raise TypeError(f"to= is the name of a group, or a list of names; got {to!r}")
    checked = SyncOptions.of({"behind": _BEHIND, **options}, "publish()")
    for option in ("strict_dtype", "shard"):
        checked.refuse(option, owner="publish()", why=f"each follower has its own: follow({option}=)")
    return Publication(model, groups, name, checked)


class Publication(Scope):
    """Published weights. Entering sends version 1; leaving without an exception waits for the last delivery.

    In a coroutine, methods start immediately and return a ``Work``; in a ``def`` method, they block.
    """

    _use = "published to"

    def __init__(self, model: Any, groups: Sequence[str], name: str, options: SyncOptions) -> None:
        """Internal; use ``publish`` to create an instance."""
        self._streamed = model if is_streamed(model) else None
        self._is_sharded = self._streamed is None and are_sharded(ParamTree.of(model))
        super().__init__(name, groups)
        self._counted = 0
        """Number of versions sent so far, on ranks that only count them."""
        self._followers: Followers | None = None
        """The followers; None on ranks that do not send."""
        self._told: DaemonRequest[list[int]] | None = None
        """Request that tells this node's daemon the last version; its answer names the nodes with experiences ``of``
        this group."""
        self._sends_ahead = bool(options.behind)
        self._patience = options.ack_timeout
        identity = context.identity
        sends = gathers_here() if self._is_sharded else identity is not None and identity.info.rank == 0
        make = functools.partial(Publisher, model, model_id=name, **options.for_publisher())
        self._sending = Sends(self._adapter, make)
        if sends:
            try:
                self._followers = Followers(self._sending.publisher, name, groups, self._patience)
            except BaseException:
                self._give_name_back()
                raise

    def __repr__(self) -> str:
        groups = ", ".join(group for group, _ in self._lines)
        return f"<Publication of '{self._name}' version {self.version} to {groups}>"

    @property
    def version(self) -> int:
        """The last version sent; 0 before the first."""
        return self._counted or self._sending.version

    def send(
        self,
        weights: Any = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send the weights; return once they may change. With ``behind=0``, first wait for the previous version.

        Args:
            weights: weights to send instead of the model's.
            version: must be higher than the last version; by default the next number.
            timeout: seconds within which followers must apply it; by default ``ack_timeout``.

        Returns:
            The version.

        Raises:
            DeadlineExceeded, PeerLost, Exception: an earlier version could not be applied somewhere, a group does not
                exist, or a follower has ended; with ``behind=0`` also: a follower was late. Nothing was sent. Each
                error is
            raised only once: here, by ``delivered`` or on leaving the block.
            WeightMismatch, ValueError: as for ``Publisher.publish``.
        """
        call = self._sending.publisher.next_call(sharded=self._is_sharded)
        check_seconds(timeout)
        begin = functools.partial(self._send, call, weights, version=version, timeout=timeout)
        return self._sending.turns.run(begin, f"a send of '{self._name}'")

    async def _send(self, call: GatherCall, weights: Any = None, *, version: int | None = None, **options: Any) -> int:
        self._check_open()
        if self._sends_ahead:
            self._sending.tell_earlier()
        elif self._sending.last in self._sending.untold:
            await self._report()
        if self._followers is not None:
            self._followers.check()
        if self._followers is None and not self._is_sharded:
            number = number_of(self._counted + 1 if version is None else version)
            if self._streamed is not None and weights is None:
                # Rank 0 iterates twice for the first version: once for the layout, and once to pack the tensors.
                await self._sending.publisher.worker_thread.do(
                    exhaust, self._streamed, 1 if self._counted else 2, nbytes=None
                )
            self._counted = number
            return number
        is_first = self._sending.last is None
        handle = await self._sending.publish(weights, version=version, call=call, **options)
        if self._followers is not None:
            self._sending.untold[handle] = None
            await self._tell_experiences(handle.version, restart=is_first)
        return handle.version

    async def _tell_experiences(self, version: int, *, restart: bool) -> None:
        """Return once experiences ``of`` this group know the version, because the next take relies on it.

        This node's daemon knows which nodes have such experiences. If no node had one at the previous version, a send
        does not wait for the answer.
        """
        identity, client = context.identity, context.client
        assert identity is not None
        assert client is not None
        published = operations.Published(identity.group_name, self._name, version, restart)
        with contextlib.suppress(ClosedError):
            before, self._told = self._told, client.request(published)
            if before is None or await before:
                nodes = await self._told
                for request in [client.request(published, node=node) for node in nodes if node != client.node]:
                    with contextlib.suppress(NodeLost):
                        await request

    def delivered(self, timeout: float | None = None) -> Any:
        """Wait until every rank of the groups has followed once, and all followers have the last version sent.

        Args:
            timeout: seconds to wait; by default ranks have ``ack_timeout`` to follow once their group exists, and
                followers have the time limit with which the version was sent.

        Returns:
            A ``SyncReport`` with names like ``"rollout:0"``, which omits followers that have left. Ranks that do not
            send get an empty report immediately; its ``is_known`` is False.

        Raises:
            RuntimeError: nothing has been sent yet.
            DeadlineExceeded, PeerLost, Exception: as for ``send``; the notes name followers that lack the version.
        """
        check_seconds(timeout)
        return self._adapter.run(self._delivered(timeout), f"the delivery of {self!r}")

    async def _delivered(self, timeout: float | None) -> SyncReport:
        self._check_open()
        if self._followers is None:
            return SyncReport(self.version, is_known=False)
        if self._sending.last is None:
            raise RuntimeError(f"nothing of '{self._name}' was sent yet: send() first, or enter it by `async with`")
        begun = clock.monotonic()
        await self._followers.gather(timeout)
        return await self._report(clock.rest(timeout, begun))

    async def _report(self, timeout: float | None = None) -> SyncReport:
        """Report on the last version sent, including followers added since then, but not followers that have left."""
        handle, followers = self._sending.last, self._followers
        assert handle is not None
        assert followers is not None
        report = await self._sending.outcome(handle, timeout, self._patience)
        report.raise_failures()
        self._sending.tell_earlier()
        followers.check()
        return report

    async def _enter(self) -> None:
        await self._send(self._sending.publisher.next_call(sharded=self._is_sharded))

    async def _leave(self) -> None:
        if self._sending.last in self._sending.untold:
            await self._delivered(None)
        self._sending.tell_earlier()

    async def _end(self) -> None:
        if self._followers is not None:
            self._followers.close()
        if self._sending.made is not None:
            await self._sending.made.close(self._failure)
