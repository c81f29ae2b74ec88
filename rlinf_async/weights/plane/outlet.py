"""One receiver of a publisher."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.links.weight_link import Link, Words


class Outlet:
    """One receiver, as its sender knows it; hears its link.

    Args:
        heard: called with this and each word.
        ended: called with this and why nothing more comes.

    Attributes:
        is_greeted: it was told what comes.
        is_ready: it has said that what comes fits.
        gpu: the uuid of the GPU on which it reads leaves; empty if none.
        refusal: why it does not; or why its link has ended.
        lost: memory on its machine that it was told of, and cannot open.
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
        self.is_greeted = False
        self.is_ready = False
        self.gpu = ""
        self.refusal: Exception | None = None
        self.owed: set[int] = set()
        self.verifying: set[int] = set()
        self.lost: Any = None
        self._heard = heard
        self._ended = ended

    def hear(self, words: Words) -> None:
        self._heard(self, words)

    def hear_end(self, error: Exception) -> None:
        self._ended(self, error)

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
            self._ended(self, error)
