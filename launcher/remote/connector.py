"""``Connector``, the interface of a way to a host (ssh or this machine): its command line, and errors explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlinf_async._wire.remote_exit import RemoteExit


class Connector(Protocol):
    """Runs the bootstrap on a host, with our end of its stdin and stdout here."""

    @property
    def argv(self) -> Sequence[str]:
        """The command that is run on this machine."""

    @property
    def is_here(self) -> bool:
        """Whether the host is this machine."""

    def explain(self, exited: RemoteExit) -> str:
        """Why the far side is gone, and what to try."""
