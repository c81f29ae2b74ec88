"""One receiver of a publisher."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.links.link import Link, Words

if TYPE_CHECKING:
    from rlinf_async.weights.plane.outlets import Outlets


class Outlet:
    """One receiver, as its sender knows it; hears its link.

    Attributes:
        is_greeted: it was told what comes.
        is_ready: it has said that it fits.
        gpu: the uuid of the GPU on which it reads leaves; empty if none.
        refusal: why it does not, as far as is known.
        is_behind: it has refused, and gets the latest version when it does not any more.
        is_asked: somebody waits for it to say whether it still does.
    """

    def __init__(self, name: Hashable, link: Link, outlets: Outlets) -> None:
        self.name = name
        self.link = link
        self.is_greeted = False
        self.is_ready = False
        self.gpu = ""
        self.refusal: Exception | None = None
        self.is_behind = False
        self.is_asked = False
        self._outlets = outlets

    def hear(self, words: Words) -> None:
        self._outlets.hear(self, words)

    def hear_end(self, error: Exception) -> None:
        self._outlets.hear_end(self, error)

    def say(self, *words: Any) -> None:
        """Says it.  If the link has ended, whoever hears it hears that.

        Raises:
            TransferFailed: the other side does not listen for now.
        """
        try:
            self.link.send(list(words))
        except TransferFailed:
            raise
        except Exception as error:
            self._outlets.hear_end(self, error)
