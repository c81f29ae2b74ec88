"""Link between a publisher and one of its receivers: words, tensors to other machines, and the error of its end.

A word is a list of plain data (numbers, strings, bytes, lists, None), a few hundred bytes long; the weights are not
among them.  A link keeps what arrives until somebody listens, and has no loop of its own: a word is heard in the
thread that reads it.
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
    """Return that the other side has weights of these names and none of this side's, to follow its label.

    Args:
        what: ``"sends weights of"``.
    """
    return f", which {what} {', '.join(map(repr, names))} and none of '{own}'"


class LinkListener(Protocol):
    """Who hears a link, one word at a time, in whatever thread reads it.  Raises nothing: that would end the link."""

    def on_message(self, words: LinkMessage) -> None: ...

    def on_end(self, error: Exception) -> None:
        """Nothing more will come."""


class WeightLink:
    """One end of the way between a sender and a receiver.

    Args:
        label: the other side, as errors call it.

    Attributes:
        node: another machine's number, where the other side lives on one; None on this machine, where memory can be
            shared.
        is_here: the other side is known to be in this process.
        address: what a third one reaches the other side by, over a link of the same kind: plain data; None where it
            cannot.
        opened: done when the other side is found and ``node`` is known; fails where it is not.
        error: why nothing more comes; None as long as the link is whole.
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
        """Held while a word is heard: they are heard in the order in which they came."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.label} [{'ended' if self.error else 'open'}]>"

    def listen(self, listener: LinkListener) -> None:
        """From now on this one hears what arrives, and first what has arrived already."""
        is_heard = True
        with self._order:
            self._listener, ended = listener, self.error
            while self._kept:
                is_heard = self._deliver(listener, self._kept.popleft())
            if ended is not None:
                self._deliver_end(listener, ended)
        if not is_heard:
            self._close()

    def send(self, words: LinkMessage) -> None:
        """Sends a word; what becomes of it is not known.

        Raises:
            PeerLost: the other side is gone.
            ClosedError: this one has closed the link.
        """
        if self.error is not None:
            raise self._told()
        self._send(words)

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        """Sends the memory of a tensor to another machine; done when it is there.  It must not change until then.

        Args:
            line: tensors on one line keep their order; if one is lost, nothing that follows on it can be trusted.
            receiver: the address of a third one, which it goes to; None: the other side.
        """
        raise NotImplementedError(f"{self!r} does not lead to another machine")

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        """The next tensor that the other side, or a third one, sends on that line goes into this one."""
        raise NotImplementedError(f"{self!r} does not lead to another machine")

    def close(self, error: Exception | None = None) -> None:
        """Gives it up, for that reason; the other side hears that.  Idempotent."""
        if self.error is None:
            self._end(error or ClosedError(f"the link to {self.label} is closed"))
        self._close()

    # -- what each kind of link does ----------------------------------------------------------------------------

    def _send(self, words: LinkMessage) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _arrive(self, words: LinkMessage) -> None:
        """A word has come."""
        with self._order:
            if self.error is not None:
                return
            if self._listener is None:
                self._kept.append(words)
                return
            is_heard = self._deliver(self._listener, words)
        if not is_heard:
            self._close()

    def _deliver(self, listener: LinkListener, words: LinkMessage) -> bool:
        """Whether it has been heard.  What goes wrong there ends the link: nobody is to wait for more on this one."""
        try:
            listener.on_message(words)
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
        """Nothing more will come."""
        with self._order:
            if self.error is not None:
                return
            self.error = error
            if self._listener is not None:
                self._kept.clear()
                self._deliver_end(self._listener, error)

    def _told(self) -> Exception:
        """The error, for one who is to raise it."""
        error = self.error
        if isinstance(error, RLinfAsyncError):
            return error.with_traceback(None)
        return PeerLost(f"{self.label} is gone: {error}")
