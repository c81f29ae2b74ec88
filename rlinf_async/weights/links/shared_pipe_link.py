"""Links over a pipe that others use too: one for each model, and whatever else its owner sends over it.

Nobody waits until the other side reads.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from rlinf_async.errors import ClosedError
from rlinf_async.weights.links.link import Link, Words
from rlinf_async.weights.links.pipe_line import PipeLine

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class SharedPipeLink(Link):
    """One model's words over a pipe; closing it says good-bye and leaves the pipe open.

    In a process that was forked it is closed, and nothing that happens to it there is heard by anybody.

    Args:
        pipe: one end of a ``multiprocessing.Pipe`` that goes both ways.
        name: the model's, the same at both ends.

    Attributes:
        token: tells it from those of the same name that were before it and come after it.
        other: the token of the link at the other end, once it has been heard.
        gone: the tokens of those that were closed over there before this one was made.
        has_spoken: something was sent.

    Raises:
        ConfigError: the pipe goes one way only.
    """

    def __init__(self, pipe: Connection[Any, Any], name: str, label: str | None = None) -> None:
        super().__init__(label or f"the process at the other end of the pipe for '{name}'")
        self.name = name
        self.token = secrets.token_bytes(8)
        self.other: bytes | None = None
        self.gone: frozenset[bytes] = frozenset()
        self.has_spoken = False
        self._line: PipeLine | None = PipeLine.of(pipe)
        self._line.join(pipe, self)
        self.opened._settle()

    def look(self) -> None:
        """Somebody may have taken a message out of the pipe."""
        if self._line is not None:
            self._line.look()

    def leave_to_parent(self) -> None:
        """This process was forked, by whichever thread."""
        self._line = None
        self._order = threading.RLock()
        if self.error is None:
            self.error = ClosedError(f"the link to {self.label} belongs to the process that forked this one")

    def _send(self, words: Words) -> None:
        if self._line is not None:
            self.has_spoken = True
            self._line.say(self, words)

    def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.leave(self)
