"""A link over one end of a ``multiprocessing.Pipe`` that is there for nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rlinf_async.weights.links.shared_pipe_link import SharedPipeLink

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_ONLY: Final = ""
"""The name of the only link of a pipe."""


class PipeLink(SharedPipeLink):
    """
    Args:
        pipe: an end of a pipe that goes both ways; the other one has such a link too.
        label: the other side, as errors call it.

    Raises:
        ConfigError: the pipe goes one way only.
    """

    def __init__(self, pipe: Connection[Any, Any], label: str = "the other end of the pipe") -> None:
        super().__init__(pipe, _ONLY, label)
