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
        that worker requests them. Messages from one worker to another arrive in the order in which they were sent.
        Tensors may be nested at any depth of the object. A GPU tensor arrives on the receiver's current device of that
        type, if there is one.

        CUDA tensors of 64 KiB or more are sent from GPU to GPU once each worker uses a GPU and knows the other's, from
        about the third message on. The receiver copies directly from the sender's memory if it can open that memory.
        Otherwise, GPUs of the same model use NCCL, and all others use pinned CPU memory. The GPU is the worker's
        current device in the thread that first sends or receives such tensors. Tensors on another GPU, broadcasts, and
        messages lost by a GPU link go through CPU memory. **The sender's tensors are kept alive until the send
        completes**; the receiver owns the tensors that arrive.

        Args:
            object: any object that pickle or cloudpickle accepts; it may contain tensors.
            dst_group_name: the receiver's group; the send waits until it exists.
            dst_rank: the receiver's rank, or the path of ranks to a worker that another worker has launched.
            async_op: return the ``Work`` outside coroutines, too.
            piggyback_payload: second object to send along; the receiver gets a pair.
            timeout: seconds after which the send is abandoned and nothing is sent. The time counts only while a caller
                waits for the send.

        Returns:
            None; in a coroutine, and with ``async_op``, a ``Work``.

        Raises:
            SerializationError: part of the object cannot be pickled.
            DeadlineExceeded: the timeout has expired, or the group did not appear in time; the message lists the
                existing groups.
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
        """Receive an object from another worker. Takes the same arguments as ``send``.

        Waiting receives are served in the order of their calls. If a wait is cancelled, nothing is lost: the next
        ``recv`` gets the message.

        Returns:
            The object, or ``(object, piggyback_payload)`` if the sender gave a payload. In a coroutine, and with
            ``async_op``, a ``Work`` that resolves to it.

        Raises:
            DeadlineExceeded, ValueError, PeerLost: as for ``send``.
            ValueError: the sender used ``send_tensor``. The message is dropped; later messages are not affected.
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

        The send completes once the receiver has the tensor, because only the receiver can tell whether it fits.

        Raises:
            ValueError: the tensor is not contiguous; or it was not received, because the receiver's tensor has a
                different dtype, shape or device type, or the receiver used ``recv``.
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
        """Receive a tensor that another worker sends with ``send_tensor``, and write it into ``tensor``.

        The content of ``tensor`` is undefined until the receive completes, and after an error.

        Raises:
            ValueError: the sent tensor has a different dtype, shape or device type, or the sender used ``send``. The
                message is dropped; later messages are not affected.
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
            The object; the source gets back the object that it passed. In a coroutine, and with ``async_op``, a
            ``Work`` that resolves to it.

        Raises:
            ValueError: ``groups`` is empty; this worker or the source is not a member.
            TypeError: ``groups`` or ``src`` does not have the form described above.
            PeerLost: a member has died.
        """
        return as_asked(require_exchange().broadcast(object, groups, src, options, timeout), async_op)
