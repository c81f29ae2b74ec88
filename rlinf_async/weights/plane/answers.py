"""Answers of a receiver to its sender: READY, REFUSE, ACK and LACK."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rlinf_async._core.failures import pack_error
from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.weights.links.link import Link
from rlinf_async.weights.state import words as say

logger = logging.getLogger(__name__)


class Answers:
    """Over a link, as long as that is there.

    Args:
        label: of the receiver.
    """

    def __init__(self, link: Link, label: str) -> None:
        self._link = link
        self._label = label
        self._owed: list[int] = []
        """Versions that were passed over."""

    def ready(self, version: int, gpu: str) -> None:
        """What the sender has to give fits; this version is applied."""
        self._say(say.READY, version, gpu)

    def refuse(self, error: Exception) -> None:
        """It does not."""
        self._say(say.REFUSE, pack_error(error))

    def lack(self, version: int) -> None:
        """It is told of that version once more, when it can be read here."""
        self._say(say.LACK, version)

    def pass_over(self, versions: Sequence[int]) -> None:
        """They are acknowledged with the one that is applied instead."""
        self._owed += versions

    def acknowledge(
        self,
        versions: Sequence[int],
        error: Exception | None = None,
        *,
        late: float = 0.0,
        apply: float = 0.0,
        pause: float = 0.0,
    ) -> None:
        """These versions, and those that were passed over, are applied; or why they are not."""
        owed, self._owed = self._owed, []
        failure = None if error is None else pack_error(error)
        for version in dict.fromkeys((*owed, *versions)):
            self._say(say.ACK, version, failure, late, apply, pause)

    def _say(self, *words: Any) -> None:
        try:
            self._link.send(list(words))
        except (PeerLost, ClosedError, TransferFailed) as error:
            logger.info("%s could not answer: %s", self._label, error)
