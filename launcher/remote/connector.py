"""``Connector``: the interface for reaching a host (by ssh, srun or locally): commands, and explanations of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlinf_async._wire.remote_exit import RemoteExit


class Connector(Protocol):
    """Command that runs the bootstrap on a host, with stdin and stdout as pipes to the launcher."""

    @property
    def argv(self) -> Sequence[str]:
        """Command line to run on this machine."""

    @property
    def is_here(self) -> bool:
        """True if the host is this machine."""

    def end_command(self, answer: Mapping[str, Any]) -> Sequence[str]:
        """Return a command to end a remote side unaware of its dead connection; ``answer`` came from its preflight."""

    def explain(self, exited: RemoteExit) -> str:
        """Explain why the remote side has ended, and how to fix it."""
