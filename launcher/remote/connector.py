"""``Connector``, the interface of a way to a host (ssh, srun or this machine): command lines, and errors explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlinf_async._wire.remote_exit import RemoteExit


class Connector(Protocol):
    """Runs the bootstrap on a host, with our end of its stdin and stdout here."""

    @property
    def argv(self) -> Sequence[str]:
        """The command that is run on this machine."""

    @property
    def is_here(self) -> bool:
        """Whether the host is this machine."""

    def end_command(self, answer: Mapping[str, Any]) -> Sequence[str]:
        """What ends a far side that does not notice that ours was killed; ``answer`` is that of its preflight."""

    def explain(self, exited: RemoteExit) -> str:
        """Why the far side is gone, and what to try."""
