"""Mixin of ``Worker``: ``send``, ``recv``, ``broadcast`` and their tensor variants, forwarded to ``Exchange``."""

from __future__ import annotations

from typing import Any, TypeVar

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._worker.context import require_exchange
from rlinf_async.work import NoneOrWork, ValueOrWork, Work, blocking

T = TypeVar("T")


def as_asked(work: Work[T], async_op: bool) -> Work[T]:
    """The work itself in a coroutine and with ``async_op``; elsewhere its result, which is waited for."""
    asked: Work[T] = work if async_op else blocking(work)
    return asked


class Messaging:
    """The part of ``Worker`` that exchanges objects and tensors with other workers."""

    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> NoneOrWork:
        """Sends any object to another worker, which calls ``recv``.

        It is done when the object may be changed.  Up to 64 MiB of messages to one worker are accepted before that
        has asked for them.  What one worker sends to another arrives in the order in which it was sent.  Tensors may
        stand at any depth of the object; each arrives on its own type of device, where the receiver has one: on the
        current one of whoever receives.

        CUDA tensors of 64 KiB and more stay on GPUs once both workers use one and know of each other's, from the third
        message or so on: the receiver copies from the sender's memory where it can open that, NCCL connects GPUs of one
        model, and pinned memory of the CPU is between all others.  A worker's GPU for that is the current one of the
        thread that first sends or receives such tensors; those on another one, what is broadcast, and whatever a link
        between GPUs loses, travel by way of the CPU.  **The sender's tensors are kept alive until the send is done**;
        what arrives is the receiver's own.

        Args:
            object: whatever pickle or cloudpickle can take, with tensors.
            dst_group_name: the receiver's group; where it does not exist yet, it is waited for.
            dst_rank: its rank; or the path of ranks to a worker that another one has launched.
            async_op: return the ``Work`` also where it could be waited for.
            piggyback_payload: something that goes along; then the receiver gets a pair.
            timeout: seconds after which it is given up, and not sent at all; counted while somebody waits for it.

        Returns:
            None; in a coroutine, and with ``async_op``, a ``Work``.

        Raises:
            SerializationError: something in the object cannot travel.
            DeadlineExceeded: the time is over, or for too long there was no such group; lists those that there are.
            ValueError: the group has no such rank.
            PeerLost: the receiver has died, or its node is lost.
        """
        return as_asked(
            require_exchange().send(object, dst_group_name, dst_rank, options, piggyback_payload, timeout), async_op
        )

    def recv(
        self,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> ValueOrWork:
        """Receives what another worker sends to this one; the arguments are those of ``send``.

        Several that wait at once are served in the order in which they were called.  If the wait is cancelled, nothing
        is lost: the next ``recv`` gets the message.

        Returns:
            The object, or ``(object, piggyback_payload)`` where the sender has given one; in a coroutine, and with
            ``async_op``, a ``Work`` of it.

        Raises:
            DeadlineExceeded, ValueError, PeerLost: as ``send``.
            ValueError: the sender has used ``send_tensor``.  That message is gone; those that follow are not affected.
        """
        return as_asked(require_exchange().recv(src_group_name, src_rank, options, timeout), async_op)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> NoneOrWork:
        """Sends one contiguous tensor to a worker that has a tensor like it in place for it: ``recv_tensor``.

        It is done when it has been received there, because only then is it known to fit.

        Raises:
            ValueError: the tensor is not contiguous; or it was not received, because the receiver's tensor has another
                dtype, shape or type of device, or the receiver has used ``recv``.
            AssertionError: it is no tensor.
        """
        return as_asked(require_exchange().send_tensor(tensor, dst_group_name, dst_rank, options, timeout), async_op)

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> NoneOrWork:
        """Receives into ``tensor`` what another worker sends with ``send_tensor``.

        What stands in the tensor is undefined until this is done, and after an error.

        Raises:
            ValueError: what was sent has another dtype, shape or type of device, or was sent by ``send``.  That message
                is gone; those that follow are not affected.
            AssertionError: ``tensor`` is none.
        """
        return as_asked(require_exchange().recv_tensor(tensor, src_group_name, src_rank, options, timeout), async_op)

    def broadcast(
        self,
        object: Any = None,
        groups: list[tuple[str, Any]] | None = None,
        src: tuple[str, Any] | None = None,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> ValueOrWork:
        """Gives one worker's object to all members; each of them calls this with the same ``groups`` and ``src``.

        Between machines it travels once per machine; from 64 MiB on, if two or more other machines get it, they pass it
        on to each other, so that the source's network carries it once.  Broadcasts among the same members keep their
        order; they have nothing to do with what those send to each other.

        Args:
            object: what the source gives; the others' does not matter.
            groups: ``(group name, ranks)`` pairs; ranks are an int, a list of ints, the path (a tuple) to a worker that
                another one has launched, or a list of paths.
            src: the source's group and rank; by default the first member.

        Returns:
            The object on every member, on the source itself the very same; in a coroutine, and with ``async_op``, a
            ``Work`` of it.

        Raises:
            ValueError: ``groups`` is empty; this worker, or the source, is not in it.
            TypeError: ``groups`` or ``src`` is not as said above.
            PeerLost: a member has died.
        """
        return as_asked(require_exchange().broadcast(object, groups, src, options, timeout), async_op)
