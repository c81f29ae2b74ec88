"""Mixin of ``Worker``: ``send``, ``recv``, ``broadcast`` and their tensor variants, forwarded to ``Exchange``."""

from __future__ import annotations

from typing import Any, TypeVar

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._worker.context import require_exchange
from rlinf_async.work import NoneOrWork, ValueOrWork, Work, blocking

T = TypeVar("T")


def as_asked(work: Work[T], async_op: bool) -> Work[T]:
    """Return the work itself in a coroutine or with ``async_op``; otherwise wait for its result and return it."""
    asked: Work[T] = work if async_op else blocking(work)
    return asked


class Messaging:
    """Mixin of ``Worker`` that exchanges objects and tensors with other workers."""

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

        The send completes once the object may be changed. Up to 64 MiB of messages to one worker are accepted before
        that worker requests them. Messages from one worker to another arrive in the order of their sends. Tensors may
        be at any depth of the object; each arrives on the same type of device, if the receiver has one: on the
        receiver's current device.

        CUDA tensors of 64 KiB and more stay on GPUs once both workers use a GPU and know the other's, from about the
        third message on: the receiver copies from the sender's memory if the receiver can open it, NCCL connects other
        GPUs of one model, and pinned CPU memory connects all others. This uses the worker's current device in the
        thread that first sends or receives such tensors. Tensors on another GPU, broadcasts, and messages lost by a
        link between GPUs go through CPU memory. **The sender's tensors are kept alive until the send completes**; the
        receiver owns the tensors that arrive.

        Args:
            object: any object that pickle or cloudpickle accepts, with tensors.
            dst_group_name: the receiver's group; the send waits until it exists.
            dst_rank: the receiver's rank, or the path of ranks to a worker that another worker has launched.
            async_op: return the ``Work`` outside coroutines, too.
            piggyback_payload: second object to send along; the receiver then gets a pair.
            timeout: seconds before the send is abandoned and nothing is sent; counted while a caller waits for the
            send.

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
        """Receive an object from another worker; takes the same arguments as ``send``.

        Several waiting receives are served in the order of their calls.  If a wait is cancelled, nothing is lost: the
        next ``recv`` gets the message.

        Returns:
            The object, or ``(object, piggyback_payload)`` if the sender gave a payload; in a coroutine, and with
            ``async_op``, a ``Work`` with it.

        Raises:
            DeadlineExceeded, ValueError, PeerLost: as for ``send``.
            ValueError: the sender used ``send_tensor``. That message is dropped; later ones are not affected.
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
        """Send a contiguous tensor to a worker that calls ``recv_tensor``.

        The send completes once the receiver has the tensor, because only then it is known to fit.

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

        The tensor's content is undefined until the receive completes, and after an error.

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
        """Send one worker's object to all members; each member calls this with the same ``groups`` and ``src``.

        Between machines the object travels once per machine. If it has 64 MiB or more and goes to two or more other
        machines, they forward it to each other, so that it crosses the source's network only once. Broadcasts among the
        same members arrive in order; their order relative to sends is undefined.

        Args:
            object: the source's object; ignored on the other members.
            groups: ``(group name, ranks)`` pairs; ranks are an int, a list of ints, the path (a tuple) to a worker that
                another worker has launched, or a list of paths.
            src: the source's group and rank; by default the first member.

        Returns:
            The object; on the source, the same object as passed; in a coroutine, and with
            ``async_op``, a ``Work`` with it.

        Raises:
            ValueError: ``groups`` is empty; this worker or the source is not a member.
            TypeError: ``groups`` or ``src`` does not have the form described above.
            PeerLost: a member has died.
        """
        return as_asked(require_exchange().broadcast(object, groups, src, options, timeout), async_op)
