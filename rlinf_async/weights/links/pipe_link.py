"""A link over one end of a ``multiprocessing.Pipe``.

One thread reads it, because ``Connection.recv_bytes`` waits in the middle of a message for the rest of it; nobody waits
until the other side reads.  The pipe itself stays its owner's: closing the link says good-bye over it and leaves it
open.
"""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import ConfigError, PeerLost, TransferFailed
from rlinf_async.weights.links.link import Link, Words
from rlinf_async.weights.links.outbox import Outbox
from rlinf_async.weights.links.pieces import Joining
from rlinf_async.weights.waiting.wake import Wake

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_PATIENCE: Final = 1.0
"""Seconds that the other side, stopped in the middle of a word, can hold up the closing of the link."""

_GOOD_BYE: Final[Words] = ["good-bye"]


class PipeLink(Link):
    """
    Args:
        pipe: an end of a pipe that goes both ways and that nobody else uses meanwhile.
        label: the other side, as errors call it.

    Raises:
        ConfigError: the pipe goes one way only.
    """

    def __init__(self, pipe: Connection[Any, Any], label: str = "the other end of the pipe") -> None:
        super().__init__(label)
        if not (pipe.readable and pipe.writable):
            raise ConfigError("the pipe goes one way only, and acknowledgements go the other: multiprocessing.Pipe()")
        self._pipe = pipe
        self._outbox = Outbox.of(pipe)
        self._outbox.join()
        self._joining = Joining()
        self._wake = Wake()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name=f"weights from {label}", daemon=True
        )
        self._thread.start()
        self.opened._settle()

    def _send(self, words: Words) -> None:
        self._outbox.say(words, self.label)

    def _run(self) -> None:
        try:
            self._read()
        finally:
            self._wake.ended()

    def _read(self) -> None:
        waiting = select.poll()
        waiting.register(self._wake.fd, select.POLLIN)
        waiting.register(self._pipe.fileno(), select.POLLIN)
        while True:
            ready = dict(waiting.poll())
            if self._wake.fd in ready:
                return
            try:
                whole = self._joining.take(self._pipe.recv_bytes())
            except (EOFError, OSError):
                self._end(PeerLost(f"{self.label} is gone: its end of the pipe is closed"))
                return
            except ValueError as error:
                self._end(TransferFailed(f"what {self.label} sends is no message of a link: {error}"))
                return
            for words in whole:
                if words == _GOOD_BYE:
                    self._end(PeerLost(f"{self.label} has closed its end of the link"))
                    return
                self._arrive(words)

    def _close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._send(_GOOD_BYE)
        except (PeerLost, TransferFailed):
            pass  # it knows, or never will
        self._outbox.leave()
        self._wake.write(b"\0")
        self._wake.leave(thread, _PATIENCE)
