"""One receiver of a publisher."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Any

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink


class Agreement(Enum):
    """Receiver's part in the agreement on what comes."""

    NEW = auto()
    """It has heard of nothing yet."""
    ASKED = auto()
    """It has been told what comes, and has not answered."""
    FITTING = auto()
    REFUSED = auto()
    """The announced weights did not fit, or the link has ended; ``refusal`` says why."""


class ReceiverState:
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
        """True if it has heard what comes."""
        return self.state is not Agreement.NEW

    def answered(self, refusal: Exception | None) -> None:
        """Note whether it takes what comes."""
        self.state, self.refusal = Agreement.FITTING if refusal is None else Agreement.REFUSED, refusal

    def on_message(self, words: LinkMessage) -> None:
        self._heard(self, words)

    def on_end(self, error: Exception) -> None:
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

    say = send_message  # as ``Relay`` calls it
