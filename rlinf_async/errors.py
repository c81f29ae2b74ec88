"""Exception classes for users to catch: ``RLinfAsyncError`` and its kinds (``WorkerDied``, ``ConfigError``, ...).

An exception of the user's own code arrives in its own type (``except ValueError`` works), with notes that name the
worker.  The classes here are the framework's own::

    RLinfAsyncError
      PeerLost                 a process in use has ended
        WorkerDied               a worker process ended (which, why, its last output, its log)
        NodeLost                 a whole machine, or the connection to it
      TransferFailed           a message's memory did not arrive; later messages may
      WrongAcknowledgement     (RuntimeError) a receiver of weights has sent an unexpected answer
      WeightMismatch           (KeyError) weights with other keys, shapes or dtypes; nothing was written
      WrongBase                (RuntimeError) a patch that does not apply to the receiver's weights
      StaleVersion             (ValueError) weights that are not newer than the receiver's; nothing was written
      DeadlineExceeded         (TimeoutError) the user's own deadline passed; names the awaited event and processes
      LaunchError              nodes or workers could not be started; lists every failed host
      ConfigError              (ValueError, AssertionError) bad configuration or arguments
      ClosedError              *your* code closed the object that it now uses
        EndOfChannel             a channel was closed, and all its items have been taken
        LoopNotRunning           (RuntimeError) the user's loop of the cluster is closed or not running
      UnobservedFailure        with fail_fast: another call failed and ended this wait; its error is the cause
      ForkedProcessError       (RuntimeError) a forked child uses an object of its parent; says what to do instead
      AuthError                the other side has no valid credentials
      VersionMismatch          the two sides have different Python or protocol versions
      SerializationError       (TypeError) a value that cannot travel; names the path inside it
      RemoteError              a remote exception that cannot be rebuilt here
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final


class RLinfAsyncError(Exception):
    """Base class of all exceptions of the framework."""


class PeerLost(RLinfAsyncError):
    """End of a worker or node in use.

    Attributes:
        returns: true if the worker is restarted under its rank (``launch(restart=)``).
    """

    returns: bool = False


_EXECUTIONS: Final = {
    "not started": "had not started",
    "started": "had started",
    "finished": "had finished: only its answer was lost",
}


class WorkerDied(PeerLost):
    """End of a worker process, with its status, its last output and its log.

    Attributes:
        group, rank, node, pid: the worker.
        verdict: how it ended, for example ``"killed by SIGKILL"`` or ``"exited with code 3"``.
        signal, exit_code: one of them is set.
        execution: how far the failed call had come: ``"not started"``, ``"started"`` or ``"finished"`` (only its answer
            was lost); ``"unknown"`` if the worker had no flight recorder; empty outside of a call.
        methods: the calls that were open on it, oldest first.
        log_path: full log of the rank on its node.
        last_words: last lines that it wrote to stderr.
        returns: true if it is restarted under its rank (``launch(restart=)``).
    """

    group: str = ""
    rank: int = -1
    node: str = ""
    pid: int = 0
    verdict: str = ""
    signal: str | None = None
    exit_code: int | None = None
    execution: str = ""
    methods: Sequence[str] = ()
    log_path: str = ""
    last_words: Sequence[str] = ()
    returns: bool = False

    @classmethod
    def from_exit_report(cls, report: Mapping[str, Any]) -> WorkerDied:
        """Return the exception for an exit report of the dead worker's daemon."""
        where = f"rank {report['rank']} of group '{report['group']}' on {report['node']} (pid {report['pid']})"
        lines = [f"{where} {report['verdict']}"]
        if how_far := _EXECUTIONS.get(report.get("execution", "")):
            lines.append(f"  this call   {how_far}")
        if report.get("methods"):
            lines.append("  open calls  " + ", ".join(report["methods"]))
        if report.get("last_words"):
            lines.append("  last words")
            lines += [f"    | {line}" for line in report["last_words"]]
        if report.get("log_path"):
            lines.append("  {:<11} {}".format(*told_log(report)))
        if report.get("returns"):
            lines.append("  restart     it is started again under its rank")
        elif report.get("reason"):
            lines.append(f"  restart     it {report['reason']}")
        error = cls("\n".join(lines))
        error.__dict__.update(report)
        return error


def told_log(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the title and the path of a dead worker's log: ``("full log", path)``."""
    if lacks := report.get("log_lacks"):
        return "log", f"{report['log_path']} ({lacks})"
    return "full log", str(report["log_path"])


class NodeLost(PeerLost):
    """Loss of a node, or of the connection to it.

    Attributes:
        node, node_rank, reason: its name, its rank, and why.
        returns: true if its worker is restarted on another node (``launch(restart=)``).
    """

    node: str = ""
    node_rank: int = -1
    reason: str = ""
    returns: bool = False

    @classmethod
    def from_facts(cls, node: str, node_rank: int, reason: str) -> NodeLost:
        """Return the exception for a lost node."""
        error = cls(f"node {node_rank} ({node}) is lost: {reason}")
        error.node, error.node_rank, error.reason = node, node_rank, reason
        return error


class TransferFailed(RLinfAsyncError):
    """The memory of a message did not arrive: one side abandoned it, or the connection broke.

    Both sides live on, and later messages are not affected.
    """


class WrongAcknowledgement(RLinfAsyncError, RuntimeError):
    """Unexpected answer of a receiver of weights: it has not applied them."""


class WeightMismatch(RLinfAsyncError, KeyError):
    """Weights whose keys, shapes or dtypes differ from the receiver's; nothing was written.

    Also a ``KeyError``, which TorchRL raises in its place.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError.__str__ would return the repr of the text


class WrongBase(RLinfAsyncError, RuntimeError):
    """Patch for another version of the weights than the receiver's; nothing was written.

    Attributes:
        base: version that the patch is for.
        version: version of the receiver.
    """

    base: int = -1
    version: int = -1

    @classmethod
    def of(cls, base: int, version: int) -> WrongBase:
        error = cls(f"the patch is for version {base} of the weights, and version {version} is here: send all of them")
        error.base, error.version = base, version
        return error


class StaleVersion(RLinfAsyncError, ValueError):
    """Weights that are late, sent twice, or have an old number: not newer than the receiver's; nothing was written.

    Attributes:
        version: version of the weights.
        latest: version that they would have to follow; the same one, if they were sent twice or are late and a version
            has been sent more than once.
    """

    version: int = -1
    latest: int = -1

    @classmethod
    def of(cls, version: int, latest: int, what: str) -> StaleVersion:
        """Return the exception for both versions.

        Args:
            what: relative clause about the latest version: ``"which is here"``.
        """
        if version < latest:
            error = cls(f"version {version} of the weights is before version {latest}, {what}: nothing was written")
        else:
            error = cls(
                f"this sending of version {version} of the weights is not after the one {what}: it is late or doubled, "
                "and nothing was written"
            )
        error.version, error.latest = version, latest
        return error


class DeadlineExceeded(RLinfAsyncError, TimeoutError):
    """Passing of a deadline, ``timeout=`` or a setting's, before the awaited event."""


class LaunchError(RLinfAsyncError):
    """Failure to start nodes or workers, with their output."""


class ConfigError(RLinfAsyncError, ValueError, AssertionError):
    """Mistake in a configuration, a placement or a setting.

    Also a ``ValueError`` and an ``AssertionError``, which RLinf raises in its place.
    """


class ClosedError(RLinfAsyncError):
    """Use of a cluster, group, channel or call that is closed or cancelled."""


class EndOfChannel(ClosedError):
    """End of a closed channel whose items have all been taken; ends ``async for``."""


class LeaseLost(RLinfAsyncError):
    """End of a lease whose time is over; its items have returned to their channel."""


class UnobservedFailure(RLinfAsyncError):
    """End of a plain ``wait()``, with ``fail_fast``, because another call has failed and no code awaits its error.

    That error is the ``__cause__``.  The awaited call continues.
    """


class LoopNotRunning(ClosedError, RuntimeError):
    """Wait for a cluster whose event loop was closed, or does not run any more.

    The message shows how one loop can serve all.
    """


class ForkedProcessError(RLinfAsyncError, RuntimeError):
    """Use of a parent's handle, channel, group or worker in a forked child; says what to do instead."""


class AuthError(RLinfAsyncError):
    """Refusal of a process without the credentials of the run."""


class VersionMismatch(RLinfAsyncError):
    """Two sides whose Python or protocol versions cannot work together."""


class SerializationError(RLinfAsyncError, TypeError):
    """A value that cannot travel between processes; the message names the path inside the value."""


class RemoteError(RLinfAsyncError):
    """Remote exception that cannot be rebuilt here.

    Attributes:
        type_name: qualified name of the original type.
        remote_traceback: traceback as formatted in the process that raised it.
    """

    type_name: str = ""
    remote_traceback: str = ""

    @classmethod
    def from_facts(cls, type_name: str, text: str, remote_traceback: str) -> RemoteError:
        """Builds the exception from what the other process tells of the original."""
        error = cls(f"{type_name}: {text}" if text else type_name)
        error.type_name, error.remote_traceback = type_name, remote_traceback
        return error
