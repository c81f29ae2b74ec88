"""Mixin of ``Worker``: ``send``, ``recv``, ``broadcast`` and their tensor variants, forwarded to ``Exchange``."""

from __future__ import annotations

from typing import Any, TypeVar

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._worker.context import require_exchange
from rlinf_async.work import NoneOrWork, ValueOrWork, Work, blocking

T = TypeVar("T")


def as_asked(work: Work[T], async_op: bool) -> Work[T]:
    """Return the work itself in a coroutine or with ``async_op``; otherwise wait for its result and return that."""
    asked: Work[T] = work if async_op else blocking(work)
    return asked


class Messaging:
    """Part of ``Worker`` that exchanges objects and tensors with other workers."""

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
        """Send any object to another worker, which calls ``recv``.

        The send is done once the object may be changed. Up to 64 MiB of messages to one worker are accepted before that
        worker requests them. Messages from one worker to another arrive in the order of their sends. Tensors may be at
        any depth of the object; each arrives on the same type of device, if the receiver has one: on the receiver's
        current device.

        CUDA tensors of 64 KiB and more stay on GPUs once both workers use one and know of each other's, from about the
        third message on: the receiver copies from the sender's memory if it can open that, NCCL connects other GPUs of
        one model, and pinned CPU memory connects all others. A worker's GPU for this is the current device of the
        thread that first sends or receives such tensors. Tensors on another GPU, broadcasts, and messages that a link
        between GPUs has lost go through CPU memory. **The sender's tensors are kept alive until the send is done**;
        the receiver owns the tensors that arrive.

        Args:
            object: any object that pickle or cloudpickle accepts, with tensors.
            dst_group_name: the receiver's group; the send waits until it exists.
            dst_rank: the receiver's rank, or the path of ranks to a worker that another worker has launched.
            async_op: return the ``Work`` outside coroutines, too.
            piggyback_payload: second object to send along; the receiver then gets a pair.
            timeout: seconds after which the send is abandoned and nothing is sent; they count while a caller waits for
            the send.

        Returns:
            None; in a coroutine, and with ``async_op``, a ``Work``.

        Raises:
            SerializationError: part of the object cannot be pickled.
            DeadlineExceeded: the timeout has expired, or the group did not appear in time; the text lists the existing
                groups.
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
        """Receive an object from another worker; the arguments are those of ``send``.

        Several waiting receives are served in the order of their calls.  If a wait is cancelled, nothing is lost: the
        next ``recv`` gets the message.

        Returns:
            The object, or ``(object, piggyback_payload)`` if the sender has given one; in a coroutine, and with
            ``async_op``, a ``Work`` with it.

        Raises:
            DeadlineExceeded, ValueError, PeerLost: as for ``send``.
            ValueError: the sender has used ``send_tensor``.  That message is dropped; later ones are not affected.
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
        """Send a contiguous tensor to a worker that receives it into its own tensor by ``recv_tensor``.

        The send is done once the receiver has the tensor, because only then is it known to fit.

        Raises:
            ValueError: the tensor is not contiguous; or it was not received, because the receiver's tensor has another
                dtype, shape or type of device, or the receiver has used ``recv``.
            AssertionError: the argument is not a tensor.
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
        """Receive into ``tensor`` a tensor that another worker sends with ``send_tensor``.

        The content of the tensor is undefined until the receive is done, and after an error.

        Raises:
            ValueError: the sent tensor has another dtype, shape or type of device, or was sent by ``send``.  That
                message is dropped; later ones are not affected.
            AssertionError: ``tensor`` is not a tensor.
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
        """Give one worker's object to all members; each of them calls this with the same ``groups`` and ``src``.

        Between machines the object travels once per machine. From 64 MiB on, if two or more other machines get it, they
        forward it to each other, so that the source's network carries it once. Broadcasts among the same members keep
        their order, which is independent of the order of their sends.

        Args:
            object: the source's object; ignored on the other members.
            groups: ``(group name, ranks)`` pairs; ranks are an int, a list of ints, the path (a tuple) to a worker that
                another worker has launched, or a list of paths.
            src: the source's group and rank; by default the first member.

        Returns:
            The object on every member, on the source itself the very same object; in a coroutine, and with
            ``async_op``, a ``Work`` with it.

        Raises:
            ValueError: ``groups`` is empty; this worker, or the source, is not in it.
            TypeError: ``groups`` or ``src`` has another form than described above.
            PeerLost: a member has died.
        """
        return as_asked(require_exchange().broadcast(object, groups, src, options, timeout), async_op)
