"""The link between a publisher and one receiver. It carries messages and, between machines, tensors.

A message is a list of plain data (numbers, strings, bytes, lists, None), a few hundred bytes long, without weights. A
link keeps messages until it has a listener, and has no loop of its own: the thread that reads a message delivers it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ClosedError, PeerLost, RLinfAsyncError
from rlinf_async.work import Work

logger = own_logger(__name__)

LinkMessage = list[Any]


def no_match(what: str, names: Iterable[str], own: str) -> str:
    """Return a suffix for a label that lists the other side's names, none of which is this side's.

    Args:
        what: the verb, such as ``"sends weights of"``.
    """
    return f", which {what} {', '.join(map(repr, names))} and none of '{own}'"


class LinkListener(Protocol):
    """The listener on a link, called with one message at a time in the thread that reads it. An error closes the
    link."""

    def on_message(self, message: LinkMessage) -> None: ...

    def on_end(self, error: Exception) -> None:
        """Handle the end of the link."""


class WeightLink:
    """One end of the connection between a sender and a receiver.

    Args:
        label: name of the other side in errors.

    Attributes:
        node: number of the other side's machine; None for this machine, where memory can be shared.
        is_here: True if the other side is known to be in this process.
        address: plain data by which a third process can reach the other side over the same kind of link; None if
            impossible.
        opened: settled once the other side is found and ``node`` is known; fails if the other side is not found.
        error: the error that ended the link; None while the link is open.
    """

    node: int | None = None
    is_here = False
    address: Any = None

    def __init__(self, label: str) -> None:
        self.label = label
        self.opened: Work[None] = Work()
        self.error: Exception | None = None
        self._listener: LinkListener | None = None
        self._kept: deque[LinkMessage] = deque()
        self._order = threading.RLock()
        """Lock held while a message is delivered, so that messages are delivered in order of arrival."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.label} [{'ended' if self.error else 'open'}]>"

    def listen(self, listener: LinkListener) -> None:
        """Set the listener, after delivering the messages that have already arrived."""
        is_heard = True
        with self._order:
            self._listener, ended = listener, self.error
            while self._kept:
                is_heard = self._deliver(listener, self._kept.popleft())
            if ended is not None:
                self._deliver_end(listener, ended)
        if not is_heard:
            self._close()

    def send(self, message: LinkMessage) -> None:
        """Send a message without waiting for confirmation.

        Raises:
            PeerLost: the other side has ended.
            ClosedError: this side has closed the link.
        """
        if self.error is not None:
            raise self._told()
        self._send(message)

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        """Send a tensor's memory to another machine; the work is done once it has arrived. Until then, the memory must
        not change.

        Args:
            line: stream of tensors, which arrive in order; after a loss, the rest of the stream is unusable.
            receiver: address of a third process to send to; None sends to the other side.
        """
        raise NotImplementedError(f"{self!r} does not lead to another machine")

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        """Receive the stream's next tensor, from the other side or from a third process, into this tensor."""
        raise NotImplementedError(f"{self!r} does not lead to another machine")

    def close(self, error: Exception | None = None) -> None:
        """Close the link, giving this error as the reason, and notify the other side. Idempotent."""
        if self.error is None:
            self._end(error or ClosedError(f"the link to {self.label} is closed"))
        self._close()

    # -- implemented by each kind of link --------------------------------------------------------------------------

    def _send(self, message: LinkMessage) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _arrive(self, message: LinkMessage) -> None:
        with self._order:
            if self.error is not None:
                return
            if self._listener is None:
                self._kept.append(message)
                return
            is_heard = self._deliver(self._listener, message)
        if not is_heard:
            self._close()

    def _deliver(self, listener: LinkListener, message: LinkMessage) -> bool:
        """Deliver one message to the listener. Return False if the listener raised, which closes the link."""
        try:
            listener.on_message(message)
        except Exception as error:
            logger.exception("what %s says could not be heard, and the link is given up", self.label)
            self._kept.clear()
            self._end(error.with_traceback(None))
            return False
        return True

    def _deliver_end(self, listener: LinkListener, error: Exception) -> None:
        try:
            listener.on_end(error)
        except Exception:
            logger.exception("the end of the link to %s could not be heard", self.label)

    def _end(self, error: Exception) -> None:
        with self._order:
            if self.error is not None:
                return
            self.error = error
            if self._listener is not None:
                self._kept.clear()
                self._deliver_end(self._listener, error)

    def _told(self) -> Exception:
        """Return the link's error, ready to be raised."""
        error = self.error
        if isinstance(error, RLinfAsyncError):
            return error.with_traceback(None)
        return PeerLost(f"{self.label} is gone: {error}")
