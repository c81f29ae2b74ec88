"""``ReceiverState``: what a sender knows about one receiver (agreement, unanswered versions, pending comparisons)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Any

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink


class Agreement(Enum):
    """The stages of the agreement on the announced weights."""

    NEW = auto()
    ASKED = auto()
    FITTING = auto()
    REFUSED = auto()
    """The announced weights did not fit, or the link has ended; ``refusal`` says why."""


class ReceiverState:
    """One receiver of a publisher, and the listener on its link.

    Args:
        heard: called with this object and each message.
        ended: called with this object and the error that ended the link.

    Attributes:
        refusal: the error in state REFUSED, otherwise None.
        gpu: uuid of the GPU on which the receiver reads leaves; empty if there is none.
        owed: announced versions to which it has not yet replied.
        verifying: versions whose digests are being compared.
    """

    def __init__(
        self,
        name: Hashable,
        link: WeightLink,
        heard: Callable[[ReceiverState, LinkMessage], None],
        ended: Callable[[ReceiverState, Exception], None],
    ) -> None:
        self.name = name
        self.link = link
        self.state = Agreement.NEW
        self.refusal: Exception | None = None
        self.gpu = ""
        self.owed: set[int] = set()
        self.verifying: set[int] = set()
        self._heard = heard
        self._ended = ended

    @property
    def is_told(self) -> bool:
        """True if the weights have been announced to the receiver."""
        return self.state is not Agreement.NEW

    def answered(self, refusal: Exception | None) -> None:
        """Record that the receiver accepts the announced weights, or why it refuses them."""
        self.state, self.refusal = Agreement.FITTING if refusal is None else Agreement.REFUSED, refusal

    def on_message(self, message: LinkMessage) -> None:
        self._heard(self, message)

    def on_end(self, error: Exception) -> None:
        self._ended(self, error)

    def send_message(self, *message: Any) -> None:
        """Send a message. If the link has ended, ``ended`` is called instead.

        Raises:
            TransferFailed: the other side is currently not reading.
        """
        try:
            self.link.send(list(message))
        except TransferFailed:
            raise
        except Exception as error:
            self._ended(self, error)
