"""The exceptions that users may catch: ``RLinfAsyncError`` and its subclasses (``WorkerDied``, ``ConfigError``, ...).

An exception from the user's own code keeps its type (``except ValueError`` works), with notes that name the worker.
The classes in this module are the framework's own::

    RLinfAsyncError
      PeerLost                 a process in use has ended
        WorkerDied               a worker process ended (which, why, its last output, its log)
        NodeLost                 a whole machine, or the connection to it
      TransferFailed           a message's memory did not arrive; later messages may
      WrongAcknowledgement     (RuntimeError) a receiver of weights has sent an unexpected answer
      WeightMismatch           (KeyError) weights with other keys, shapes or dtypes; nothing was written
      WrongBase                (RuntimeError) a patch that does not apply to the receiver's weights
      StaleVersion             (ValueError) weights that are not newer than the receiver's; nothing was written
      DeadlineExceeded         (TimeoutError) the user's deadline passed; names the awaited event and processes
      LaunchError              nodes or workers could not be started; lists every failed host
      ConfigError              (ValueError, AssertionError) bad configuration or arguments
      ClosedError              *your* code closed the object that it now uses
        EndOfChannel             a channel was closed, and all its items have been taken
        LoopNotRunning           (RuntimeError) the user's loop of the cluster is closed or not running
      UnobservedFailure        with fail_fast: another call failed and ended this wait; its error is the cause
      ForkedProcessError       (RuntimeError) a forked child uses an object of its parent; says what to do instead
      AuthError                the other side has no valid credentials
      VersionMismatch          the two sides have different Python or protocol versions
      SerializationError       (TypeError) a value that cannot be serialized; names the path inside it
      RemoteError              a remote exception that cannot be rebuilt here
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final


class RLinfAsyncError(Exception):
    """Base class of all exceptions of the framework."""


class PeerLost(RLinfAsyncError):
    """Raised because a worker or node in use has ended.

    Attributes:
        returns: true if the worker is restarted with the same rank (``launch(restart=)``).
    """

    returns: bool = False


_EXECUTIONS: Final = {
    "not started": "had not started",
    "started": "had started",
    "finished": "had finished: only its answer was lost",
}


class WorkerDied(PeerLost):
    """Raised because a worker process has ended; has its status, its last output and the path of its log.

    Attributes:
        group, rank, node, pid: identity of the worker.
        verdict: how it ended, for example ``"killed by SIGKILL"`` or ``"exited with code 3"``.
        signal, exit_code: how the process ended; exactly one of them is set.
        execution: progress of the failed call: ``"not started"``, ``"started"`` or ``"finished"`` (only its answer was
            lost). ``"unknown"`` if the worker had no flight recorder, and empty if the error does not belong to a call.
        methods: the worker's open calls, oldest first.
        log_path: path of the rank's full log on its node.
        last_words: the last lines that the worker wrote to stderr.
        returns: true if the worker is restarted with the same rank (``launch(restart=)``).
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
        """Build the exception from the exit report of the dead worker's daemon."""
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
    """Raised because a node, or the connection to it, is lost.

    Attributes:
        node, node_rank, reason: the node's name, its rank, and why it was lost.
        returns: true if the node's worker will be restarted on another node (``launch(restart=)``).
    """

    node: str = ""
    node_rank: int = -1
    reason: str = ""
    returns: bool = False

    @classmethod
    def from_facts(cls, node: str, node_rank: int, reason: str) -> NodeLost:
        """Build the exception for a lost node."""
        error = cls(f"node {node_rank} ({node}) is lost: {reason}")
        error.node, error.node_rank, error.reason = node, node_rank, reason
        return error


class TransferFailed(RLinfAsyncError):
    """Raised when a message's memory did not arrive, because one side abandoned it or the connection broke.

    Both sides continue, and later messages are not affected.
    """


class WrongAcknowledgement(RLinfAsyncError, RuntimeError):
    """Raised when a receiver of weights sends an unexpected answer; it has not applied the weights."""


class WeightMismatch(RLinfAsyncError, KeyError):
    """Raised for weights whose keys, shapes or dtypes differ from the receiver's; nothing was written.

    It is also a ``KeyError``, because TorchRL raises that in this case.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError.__str__ would return the repr of the text


class WrongBase(RLinfAsyncError, RuntimeError):
    """Raised for a patch that applies to a different version of the weights than the receiver's; nothing was written.

    Attributes:
        base: version to which the patch applies.
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
    """Raised for weights that are not newer than the receiver's, because they are late or repeated; nothing was
    written.

    Attributes:
        version: version of the weights.
        latest: the latest version, which ``version`` would have to exceed. Both are equal if the weights were sent
            twice, or if they are late and the version has been sent more than once.
    """

    version: int = -1
    latest: int = -1

    @classmethod
    def of(cls, version: int, latest: int, what: str) -> StaleVersion:
        """Build the exception from both versions.

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
    """Raised when a deadline, from ``timeout=`` or a setting, has passed before the awaited event."""


class LaunchError(RLinfAsyncError):
    """Raised when nodes or workers could not be started; has their output."""


class ConfigError(RLinfAsyncError, ValueError, AssertionError):
    """Raised for a mistake in a configuration, a placement or a setting.

    It is also a ``ValueError`` and an ``AssertionError``, because RLinf raises those in such cases.
    """


class ClosedError(RLinfAsyncError):
    """Raised when code uses a cluster, group, channel or call that is closed or cancelled."""


class EndOfChannel(ClosedError):
    """Raised at the end of a closed channel, once all its items have been taken; ends ``async for``."""


class LeaseLost(RLinfAsyncError):
    """Raised when a lease has timed out and its items have returned to their channel."""


class UnobservedFailure(RLinfAsyncError):
    """Raised by a plain ``wait()`` with ``fail_fast``, because another call has failed and no code awaits its error.

    That call's error is the ``__cause__``. The awaited call continues.
    """


class LoopNotRunning(ClosedError, RuntimeError):
    """Raised by a wait for a cluster whose event loop is closed or no longer running.

    The message shows how one loop can serve all code.
    """


class ForkedProcessError(RLinfAsyncError, RuntimeError):
    """Raised when a forked child uses a handle, channel, group or worker of its parent; says what to do instead."""


class AuthError(RLinfAsyncError):
    """Raised when a process without the run's credentials is refused."""


class VersionMismatch(RLinfAsyncError):
    """Raised when two sides have Python or protocol versions that cannot work together."""


class SerializationError(RLinfAsyncError, TypeError):
    """Raised for a value that cannot be sent between processes; the message names the path inside the value."""


class RemoteError(RLinfAsyncError):
    """Stands in for a remote exception that cannot be rebuilt here.

    Attributes:
        type_name: qualified name of the original type.
        remote_traceback: traceback as formatted in the process that raised the exception.
    """

    type_name: str = ""
    remote_traceback: str = ""

    @classmethod
    def from_facts(cls, type_name: str, text: str, remote_traceback: str) -> RemoteError:
        """Build the exception from the other process's description of the original."""
        error = cls(f"{type_name}: {text}" if text else type_name)
        error.type_name, error.remote_traceback = type_name, remote_traceback
        return error
