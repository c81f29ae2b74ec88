"""``Connector``, the interface of a way to a host (ssh, srun or this machine): command lines, and errors explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlinf_async._wire.remote_exit import RemoteExit


class Connector(Protocol):
    """Interface of a command that runs the bootstrap on a host, with its stdin and stdout as pipes to the launcher."""

    @property
    def argv(self) -> Sequence[str]:
        """The command line for this machine."""

    @property
    def is_here(self) -> bool:
        """True if the host is this machine."""

    def end_command(self, answer: Mapping[str, Any]) -> Sequence[str]:
        """Return a command that ends a remote side unaware of its dead connection; ``answer`` is its preflight's."""

    def explain(self, exited: RemoteExit) -> str:
        """Explain why the remote side has ended, with a fix."""
