"""One receiver of a publisher."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Any

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.links.weight_link import Link, Words


class State(Enum):
    """Receiver's part in the agreement on what comes."""

    NEW = auto()
    """It has heard of nothing yet."""
    ASKED = auto()
    """It has been told what comes, and has not answered."""
    FITTING = auto()
    REFUSED = auto()
    """The announced weights did not fit, or the link has ended; ``refusal`` says why."""


class Outlet:
    """One receiver, as its sender knows it; hears its link.

    Args:
        heard: called with this and each word.
        ended: called with this and why nothing more comes.

    Attributes:
        refusal: an error in REFUSED, None in other states.
        gpu: the uuid of the GPU on which it reads leaves; empty if none.
        owed: versions that it was told of and has not answered.
        verifying: versions whose digests it has sent, which are being compared.
    """

    def __init__(
        self,
        name: Hashable,
        link: Link,
        heard: Callable[[Outlet, Words], None],
        ended: Callable[[Outlet, Exception], None],
    ) -> None:
        self.name = name
        self.link = link
        self.state = State.NEW
        self.refusal: Exception | None = None
        self.gpu = ""
        self.owed: set[int] = set()
        self.verifying: set[int] = set()
        self._heard = heard
        self._ended = ended

    @property
    def is_told(self) -> bool:
        """True if it has heard what comes."""
        return self.state is not State.NEW

    def answered(self, refusal: Exception | None) -> None:
        """Note whether it takes what comes."""
        self.state, self.refusal = State.FITTING if refusal is None else State.REFUSED, refusal

    def hear(self, words: Words) -> None:
        self._heard(self, words)

    def hear_end(self, error: Exception) -> None:
        self._ended(self, error)

    def send_message(self, *words: Any) -> None:
        """Says it.  If the link has ended, whoever hears it hears that.

        Raises:
            TransferFailed: the other side does not listen for now.
        """
        try:
            self.link.send(list(words))
        except TransferFailed:
            raise
        except Exception as error:
            self._ended(self, error)
