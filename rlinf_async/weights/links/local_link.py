"""``LocalLink``, a link whose two ends are in one process."""

from __future__ import annotations

from rlinf_async.errors import PeerLost
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink


class LocalLink(WeightLink):
    """One end of a link; ``pair`` creates both ends. The sending thread delivers each message."""

    is_here = True

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self._other: LocalLink | None = None
        self.opened._settle()

    @classmethod
    def pair(cls, sender: str = "the sender", receiver: str = "the receiver") -> tuple[LocalLink, LocalLink]:
        """Return the sender's end and the receiver's end."""
        to_receiver, to_sender = cls(receiver), cls(sender)
        to_receiver._other, to_sender._other = to_sender, to_receiver
        return to_receiver, to_sender

    def _send(self, message: LinkMessage) -> None:
        other = self._other
        if other is None:  # another thread has closed this end since ``send`` checked it
            raise self._told()
        other._arrive(list(message))

    def _close(self) -> None:
        other, self._other = self._other, None
        if other is not None and other.error is None:
            other._end(PeerLost(f"{other.label} has closed its end of the link"))
