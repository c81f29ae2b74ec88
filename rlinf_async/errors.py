"""Exception classes for users to catch: ``RLinfAsyncError`` and its kinds (``WorkerDied``, ``ConfigError``, ...).

An exception of the user's own code arrives as itself (``except ValueError`` works), with notes that name the
worker.  What stands here is the framework's own word::

    RLinfAsyncError
      PeerLost                 somebody whom we talked to is gone
        WorkerDied               a worker process ended (who, why, its last words, where the log is)
        NodeLost                 a whole machine, or the way to it
      TransferFailed           a message's memory did not come through; what follows it may
      WrongAcknowledgement     (RuntimeError) a receiver of weights has said something else than was expected
      WeightMismatch           (KeyError) weights that do not fit: keys, shapes or dtypes; nothing was written
      WrongBase                (RuntimeError) a patch of weights for another version than the one that is there
      StaleVersion             (ValueError) weights that were not sent after those that are there; nothing was written
      DeadlineExceeded         (TimeoutError) the user's own deadline passed; says what was awaited, from whom
      LaunchError              nodes or workers could not be started; lists every failed host
      ConfigError              (ValueError, AssertionError) bad configuration or arguments
      ClosedError              *your* code closed the thing that it now uses
        EndOfChannel             a channel was closed, and everything in it has been taken
        LoopNotRunning           (RuntimeError) the user's loop that the cluster lives on is closed, or is not run
      UnobservedFailure        with fail_fast: a wait was ended, because another call failed; its error is the cause
      ForkedProcessError       (RuntimeError) a forked child uses what belongs to its parent; says what to do instead
      AuthError                the other side is not who it should be
      VersionMismatch          two sides of different Python or protocol versions
      SerializationError       (TypeError) a value that cannot travel; names the path inside it
      RemoteError              a remote exception that cannot be rebuilt here
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final


class RLinfAsyncError(Exception):
    """Base class of all exceptions of the framework."""


class PeerLost(RLinfAsyncError):
    """End of a worker or node that something waited for or talked to.

    Attributes:
        returns: the worker is started again under its rank, as ``launch(restart=)`` says.
    """

    returns: bool = False


_EXECUTIONS: Final = {
    "not started": "had not started",
    "started": "had started",
    "finished": "had finished: only its answer was lost",
}


class WorkerDied(PeerLost):
    """End of a worker process, with its status, its last words and its log.

    Attributes:
        group, rank, node, pid: who.
        verdict: what happened in words, for example ``"killed by SIGKILL"`` or ``"exited with code 3"``.
        signal, exit_code: one of them is set.
        execution: how far the call that fails with this had come: ``"not started"``, ``"started"`` or ``"finished"``
            (only its answer was lost); ``"unknown"`` where the worker had no flight recorder; empty of no call.
        methods: the calls that were open on it, oldest first.
        log_path: the full log of the rank on its node.
        last_words: the last lines that it wrote to stderr.
        returns: it is started again under its rank, as ``launch(restart=)`` says.
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
        """Builds the exception from what the daemon of the dead worker tells."""
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
    """What the log of a dead worker is to be called, and where it is: ``("full log", path)``."""
    if lacks := report.get("log_lacks"):
        return "log", f"{report['log_path']} ({lacks})"
    return "full log", str(report["log_path"])


class NodeLost(PeerLost):
    """A node, or the way to it, is gone.

    Attributes:
        node, node_rank, reason: its name, its rank, and why.
        returns: the worker that was there is started again on another one, as ``launch(restart=)`` says.
    """

    node: str = ""
    node_rank: int = -1
    reason: str = ""
    returns: bool = False

    @classmethod
    def from_facts(cls, node: str, node_rank: int, reason: str) -> NodeLost:
        """Builds the exception from the name and rank of the node, and why it is lost."""
        error = cls(f"node {node_rank} ({node}) is lost: {reason}")
        error.node, error.node_rank, error.reason = node, node_rank, reason
        return error


class TransferFailed(RLinfAsyncError):
    """The memory of a message did not reach the other worker: one side gave it up, or the way between them broke.

    Both live on, and what they send next is not affected.
    """


class WrongAcknowledgement(RLinfAsyncError, RuntimeError):
    """A receiver of weights has said something else than that it has applied them."""


class WeightMismatch(RLinfAsyncError, KeyError):
    """Weights whose keys, shapes or dtypes are not those of the other side; nothing was written.

    Also a ``KeyError``, which TorchRL raises in its place.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # a KeyError would show its text in quotes, with the quotes in it escaped


class WrongBase(RLinfAsyncError, RuntimeError):
    """A patch was made for another version of the weights than the one that the receiver has; nothing was written.

    Attributes:
        base: the version that the patch is for.
        version: the version that is there.
    """

    base: int = -1
    version: int = -1

    @classmethod
    def of(cls, base: int, version: int) -> WrongBase:
        error = cls(f"the patch is for version {base} of the weights, and version {version} is here: send all of them")
        error.base, error.version = base, version
        return error


class StaleVersion(RLinfAsyncError, ValueError):
    """Weights that are late, doubled, or have an old number: not sent after what is there; nothing was written.

    Attributes:
        version: of the weights.
        latest: the version of those that they would have to be sent after; the same one, if they are doubled or late
            and a version has been sent more than once.
    """

    version: int = -1
    latest: int = -1

    @classmethod
    def of(cls, version: int, latest: int, what: str) -> StaleVersion:
        """Builds the exception from both versions.

        Args:
            what: of the latest one: ``"which is here"``.
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
    """Passing of a deadline, ``timeout=`` or a setting's, before the awaited thing happened."""


class LaunchError(RLinfAsyncError):
    """Failure to start nodes or workers, with what they said."""


class ConfigError(RLinfAsyncError, ValueError, AssertionError):
    """A mistake in a configuration, a placement or a setting.

    Also a ``ValueError`` and an ``AssertionError``, which RLinf raises in its place.
    """


class ClosedError(RLinfAsyncError):
    """Use of a cluster, group, channel or call that is closed or cancelled."""


class EndOfChannel(ClosedError):
    """End of a closed channel, of which everything has been taken: what ``async for`` ends with."""


class LeaseLost(RLinfAsyncError):
    """End of a lease whose items have gone back to their channel, after the seconds that it was for."""


class UnobservedFailure(RLinfAsyncError):
    """End of a plain ``wait()``, with ``fail_fast``, because another call has failed and nothing awaits its error.

    That error is the ``__cause__``.  What was waited for goes on.
    """


class LoopNotRunning(ClosedError, RuntimeError):
    """Wait for a cluster whose event loop was closed, or does not run any more.

    The message shows how one loop can serve all.
    """


class ForkedProcessError(RLinfAsyncError, RuntimeError):
    """Use of a parent's handle, channel, group or worker in a forked child; says what to do instead."""


class AuthError(RLinfAsyncError):
    """Refusal of a process that has not the credentials of the run."""


class VersionMismatch(RLinfAsyncError):
    """Two sides whose Python or protocol versions cannot work together."""


class SerializationError(RLinfAsyncError, TypeError):
    """A value that cannot travel between processes; the message names the path inside the value."""


class RemoteError(RLinfAsyncError):
    """A remote exception that cannot be rebuilt here.

    Attributes:
        type_name: the qualified name of the original type.
        remote_traceback: the formatted traceback, as it was on the machine where it happened.
    """

    type_name: str = ""
    remote_traceback: str = ""

    @classmethod
    def from_facts(cls, type_name: str, text: str, remote_traceback: str) -> RemoteError:
        """Builds the exception from what the other process tells of the original."""
        error = cls(f"{type_name}: {text}" if text else type_name)
        error.type_name, error.remote_traceback = type_name, remote_traceback
        return error
