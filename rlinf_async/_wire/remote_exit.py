"""``RemoteExit``: the exit code and last output of a remote subprocess, as data and as an error text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteExit:
    """The exit code and last output of a far side; the exit code is None until the process has been reaped."""

    exit_code: int | None
    noise: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()

    def outcome(self) -> str:
        if self.exit_code is None:
            return "closed its output"
        if self.exit_code < 0:
            return f"was killed by signal {-self.exit_code}"
        return f"ended with exit code {self.exit_code}"

    def last_lines(self) -> list[str]:
        said = [f"stderr | {line}" for line in self.stderr[-15:]]
        return said + [f"stdout | {line}" for line in self.noise[-5:]]


def describe_exit(exited: RemoteExit) -> str:
    """Return an error text that describes the outcome and quotes the last output."""
    return "\n".join([f"its process {exited.outcome()}", *exited.last_lines()])
