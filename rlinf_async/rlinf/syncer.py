"""The base class of RLinf's weight syncers, which communicate through callbacks ``send(obj)`` and ``recv()``."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.rlinf.sending import Sending
from rlinf_async.rlinf.syncer_options import read_syncer
from rlinf_async.weights.model.gather import gathers_here
from rlinf_async.weights.model.gather_calls import GatherCall, GatherCalls
from rlinf_async.weights.model.param_tree import EXTRA_STATE, ParamTree, name_of
from rlinf_async.weights.model.shards import is_sharded
from rlinf_async.weights.waiting.execution import outlast

Send: TypeAlias = Callable[[Any], Awaitable[Any]]
Recv: TypeAlias = Callable[[], Awaitable[Any]]


class WeightSyncer:
    """One end of a synchronisation; the other end has the same class and options.

    Both ends are initialised; afterwards every ``sync`` of the sender is paired with one ``apply`` of each receiver.
    ``send`` may reach any number of receivers, for example through ``Worker.broadcast``.

    Version numbers never decrease.  A version may be sent several times, after a failed send or with weights changed by
    further training, as RLinf's runners do before an evaluation. Receivers end up with the last weights sent, and a
    patch for an earlier transmission of a version does not apply to a later one. A receiver has the weights of one
    whole transmission, never a mixture: an update that is incomplete, does not fit, or was not sent after the
    receiver's weights raises an error before anything is written. Initialising a sender again restarts the numbers;
    in that case, receivers of patches must be initialised again, too.

    Attributes:
        comm_options: the configuration's communication options, for ``Worker.broadcast``; or None.
        version: version of the last update that was sent or applied completely; -1 before the first.
    """

    comm_options: CollectiveGroupOptions | None = None
    _skips_missing = False
    """True if ``sync`` sends only the names that exist; False if it refuses weights that lack some names."""

    def __init__(self) -> None:
        self.version = -1
        self._names: frozenset[str] | None = None
        self._sender_initialized = self._receiver_initialized = False
        self._is_sender: bool | None = None  # as given by the caller
        self._sends, self._gathers = True, False  # whether this rank sends and gathers in the current version
        self._is_under_way = self._is_applying = False
        self._latest = Sending.none_yet()  # the last transmission that may have reached a receiver
        self._calls = GatherCalls()

    @staticmethod
    def create(config: Any) -> WeightSyncer:
        """Return a syncer from a configuration.

        Args:
            config: a mapping, or an OmegaConf config: ``type: bucket`` or ``patch``; the arguments of that class, flat
                or in a section named after the type (``init_sync: {enabled: true}`` is ``init_sync_enabled``,
                ``compression`` is ``compression_algorithm``); and for the communication ``use_ring_sync``,
                ``nccl_max_ctas``, ``nccl_min_ctas``.  By default buckets and patches are sent from the GPU, if there is
                one.

        Raises:
            ValueError: there is no such type.
            ConfigError: an option is unknown, or has an invalid value.
        """
        kind, arguments, options = read_syncer(config)
        syncer: WeightSyncer = kind(**arguments)
        syncer.comm_options = options
        return syncer

    # -- the sender -----------------------------------------------------------------------------------------------

    async def init_sender(
        self,
        state_dict: Mapping[str, Any],
        param_names_need_sync: Collection[str] | None,
        send: Send,
        recv: Recv | None = None,
        is_sender: bool | None = None,
    ) -> None:
        """Initialise the sender; the next version may have any number. A patch syncer receives the receivers'
        descriptions.

        Args:
            state_dict: the trainer's weights; DTensors are gathered, so every rank of the trainer must call these
                methods.
            param_names_need_sync: keys to synchronise; None means all.
            is_sender: False on ranks that only take part in gathering; None means that rank 0 sends if the weights are
                sharded, and that every rank sends otherwise.

        Raises:
            ValueError: there are no names.
            WeightMismatch: the receiver's weights do not match.
            RuntimeError: a version is being sent.
            TransferFailed: as for ``sync``.
        """
        self._begin_anew(param_names_need_sync, is_sender)
        self._sender_initialized = True

    async def sync(self, state_dict: Mapping[str, Any], send: Send, version: int) -> None:
        """Send a version; return once ``send`` has accepted all messages.

        Messages are copies.  A thread prepares the next message while one is being sent, so the event loop is not
        blocked.  The weights must not change until this returns; with ``stage``, the optimizer may step earlier.

        Args:
            version: not lower than the last version, even if that one failed, because a receiver may have it.  An equal
                version is sent again with the current weights.

        Raises:
            RuntimeError: the sender is not initialised, or another version is being sent.
            StaleVersion: (a ValueError) the version is lower than the last version; nothing was sent.
            ValueError: there is nothing to send.
            WeightMismatch: the weights no longer have the agreed names, shapes and dtypes; nothing was sent.
            TransferFailed: the weights are sharded, and another rank has refused this call or failed in it.
            Exception: raised by ``send``, after the other ranks have completed their gathering.  The next ``sync``
                sends everything.
        """
        messages = await self._begin(state_dict, version)
        try:
            await self._send_all(messages, send)
            self._sent(self._latest)
        finally:
            self._is_under_way = False

    async def _send_all(self, messages: Iterator[Any], send: Send) -> None:
        """Send each message while a thread prepares the next."""
        message = await in_thread(next, messages, None)
        while message is not None:
            following = asyncio.get_running_loop().run_in_executor(None, next, messages, None)
            try:
                if self._sends:
                    await send(message)
            except BaseException:
                with contextlib.suppress(Exception):
                    await outlast(following)
                    if self._gathers:  # the other ranks are gathering and would wait for this rank
                        await in_thread(deque, messages, 0)
                raise
            message = await outlast(following)

    async def stage(self, state_dict: Mapping[str, Any], version: int) -> StagedWeights:
        """Copy a version, or its changes; afterwards, the weights may change.

        Returns:
            A copy to deliver before the next ``stage`` or ``sync``.

        Raises:
            RuntimeError, StaleVersion, WeightMismatch, TransferFailed: as for ``sync``.
        """
        messages = await self._begin(state_dict, version)
        try:
            return StagedWeights(self, self._latest, await in_thread(list, messages))
        except BaseException:
            self._is_under_way = False
            raise

    def sender_initialized(self) -> bool:
        return self._sender_initialized

    def _produce(self, tree: ParamTree, sending: Sending, call: GatherCall) -> Iterator[Any]:
        """Yield the messages of one transmission, created in a thread; ``call`` gathers sharded weights."""
        raise NotImplementedError

    def _sent(self, sending: Sending) -> None:
        self.version = sending.version

    def _check(self, tree: ParamTree, version: int) -> None:
        """Check weights in a thread, with the same result on every rank.

        Raises:
            ValueError: the version number is too large for the protocol.
            WeightMismatch: the tensors do not match the agreed names, shapes and dtypes.
        """

    def _begin_anew(self, names: Collection[str] | None, is_sender: bool | None) -> GatherCall:
        call = self._calls.next()
        if self._is_under_way:
            raise RuntimeError("a version is on its way: await its sync(), or deliver() what was staged")
        if names is not None and not names:
            raise ValueError("param_names_need_sync= must not be empty; None stands for all of them")
        self._sender_initialized, self._is_sender = False, is_sender
        self._names = None if names is None else frozenset(names)
        self.version, self._latest = -1, Sending.none_yet()
        return call

    async def _begin(self, state_dict: Mapping[str, Any], version: int) -> Iterator[Any]:
        # Count before every check that may fail on this rank alone; otherwise the ranks would count differently.
        call = self._calls.next()
        if not self._sender_initialized:
            raise RuntimeError("the sender is not initialised: await init_sender() first")
        if self._is_under_way:
            raise RuntimeError("another version is on its way: await its sync(), or deliver() what was staged")
        sending = self._latest.following(version)
        self._is_under_way = True
        try:
            tree = await in_thread(self._checked, state_dict, sending.version, call)
        except BaseException:
            self._is_under_way = False
            raise
        self._latest = sending
        return self._produce(tree, self._latest, call)

    def _checked(self, state_dict: Mapping[str, Any], version: int, call: GatherCall) -> ParamTree:
        tree = self._select(state_dict, self._names)
        self._check_rank(tree, call)
        self._check(tree, version)
        return tree

    def _check_rank(self, tree: ParamTree, call: GatherCall) -> None:
        """Decide whether this rank sends; sharded weights are gathered on rank 0 of torch.distributed.

        Raises:
            ConfigError: another rank was chosen to send sharded weights.
        """
        self._gathers = any(map(is_sharded, tree.tensors.values()))
        has_all = gathers_here() or not self._gathers
        if self._is_sender and not has_all:
            raise ConfigError(
                "sharded weights are gathered on rank 0 of torch.distributed: give the others is_sender=False, or none"
            )
        self._sends = has_all if self._is_sender is None else self._is_sender
        if self._gathers:
            call.found_sharded()  # before any check that could fail on this rank alone

    def _select(self, state_dict: Mapping[str, Any], names: Collection[str] | None) -> ParamTree:
        """Return the tensors with the given keys; raise WeightMismatch if a key is missing."""
        tree = ParamTree.of(
            state_dict,
            lambda name, value: (
                (names is None or name in names) and EXTRA_STATE not in name and isinstance(value, torch.Tensor)
            ),
        )
        if names is None or self._skips_missing:
            return tree
        if missing := sorted(set(names) - {name_of(path) for path, _ in tree.items()}):
            raise WeightMismatch(f"the weights lack {', '.join(map(repr, missing[:5]))}, which should be synchronised")
        return tree

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def init_receiver(self, state_dict: Mapping[str, Any] | None, recv: Recv, send: Send | None = None) -> None:
        """Initialise the receiver; the next version may have any number. A patch syncer describes its weights to the
        sender.

        Args:
            state_dict: the receiver's weights.

        Raises:
            WeightMismatch: the first weights do not fit.
        """
        self.version, self._receiver_initialized = -1, True

    async def apply(self, model: Any, recv: Recv) -> int:
        """Receive a version into a module or a state dict; return its number, which is not lower than the last.

        A thread writes the model once, after the whole version has arrived; do not read the model until this returns.
        After any error the model has one whole version: the old one, or the new one if a cancellation came during the
        write; ``version`` says which.  (``load_instant`` of a bucket syncer breaks this guarantee.)

        Raises:
            RuntimeError: a patch syncer is not initialised, or another ``apply`` is running.
            StaleVersion: (a ValueError) the update is late or a duplicate; nothing was written, and nothing is missing.
            WrongBase: the patch is for another version, or for another transmission of this version; nothing was
                written, and no patch will apply until the sender has sent everything.
            WeightMismatch: the update does not fit; nothing was written.
            Exception: raised by ``recv``.
        """
        if self._is_applying:
            raise RuntimeError("another apply() is under way: await it first")
        self._is_applying = True
        try:
            return await self._apply(model, recv)
        finally:
            self._is_applying = False

    async def _apply(self, model: Any, recv: Recv) -> int:
        raise NotImplementedError

    def receiver_initialized(self) -> bool:
        return self._receiver_initialized


class StagedWeights:
    """A version that has been copied but not yet sent. If it is dropped, the next ``sync`` sends everything."""

    def __init__(self, syncer: WeightSyncer, sending: Sending, messages: list[Any]) -> None:
        self.version = sending.version
        self._sending = sending
        self._syncer = syncer
        self._messages: list[Any] | None = messages

    async def deliver(self, send: Send) -> None:
        """Send the copy, once. If ``send`` raises, the next ``sync`` sends everything.

        Raises:
            RuntimeError: the copy has already been delivered or dropped.
        """
        messages, self._messages = self._messages, None
        if messages is None:
            raise RuntimeError(f"version {self.version} has been delivered, or given up: sync() or stage() once more")
        try:
            for message in messages if self._syncer._sends else []:
                await send(message)
            self._syncer._sent(self._sending)
        finally:
            self._syncer._is_under_way = False

    def __del__(self) -> None:
        if self._messages is not None:  # an error came before ``deliver``
            self._syncer._is_under_way = False


def collect_param_names_need_sync(module: nn.Module) -> list[str]:
    """Return the names of weights that training changes: parameters that require a gradient, and persistent buffers."""
    trainable = ParamTree.of(module, "trainable")
    return [name_of(path) for path, _ in sorted(trainable.items())]


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread of the loop's executor, and wait for it to end even if this call is cancelled."""
    return await outlast(asyncio.get_running_loop().run_in_executor(None, function, *arguments))
