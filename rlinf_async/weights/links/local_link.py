"""A link within one process."""

from __future__ import annotations

from rlinf_async.errors import PeerLost
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink


class LocalLink(WeightLink):
    """One end; ``pair`` makes both. The sending thread delivers a message."""

    is_here = True

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self._other: LocalLink | None = None
        self.opened._settle()

    @classmethod
    def pair(cls, sender: str = "the sender", receiver: str = "the receiver") -> tuple[LocalLink, LocalLink]:
        """Return the sender's end and the receiver's."""
        to_receiver, to_sender = cls(receiver), cls(sender)
        to_receiver._other, to_sender._other = to_sender, to_receiver
        return to_receiver, to_sender

    def _send(self, words: LinkMessage) -> None:
        other = self._other
        if other is None:  # another thread has closed this one since it was seen to be whole
            raise self._told()
        other._arrive(list(words))

    def _close(self) -> None:
        other, self._other = self._other, None
        if other is not None and other.error is None:
            other._end(PeerLost(f"{other.label} has closed its end of the link"))
