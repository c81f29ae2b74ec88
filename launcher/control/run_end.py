"""``rlinf-ctl kill`` and ``restart`` have daemons kill ranks; ``down`` shuts a run down cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

from rlinf_async._core import frames, operations
from rlinf_async.errors import ClosedError

from .attachment import Attachment
from .run_places import NoSuchRun
from .run_view import look
from .text_output import TextOutput

_NOT_KILLED: Final = "it is still being started, is a subprocess of a worker, or has ended meanwhile"
_REASON: Final = "was killed by an operator (rlinf-ctl kill)"


async def kill(attachment: Attachment, output: TextOutput, words: str, *, restart: bool = False) -> bool:
    """Kill the ranks of ``GROUP[:RANKS]``; return False if some survive.  Raises NoSuchRun.

    With ``restart``, their owners restart them, which does not count against the restart limit.
    """
    chosen = (await look(attachment)).choose(words)
    if any(process.role == "driver" for process in chosen):
        raise NoSuchRun("a driver is no rank of a group\n  fix: `rlinf-ctl down` ends the run")
    numbers: dict[int, list[int]] = {}
    for process in chosen:
        numbers.setdefault(process.node, []).append(frames.number_of(process.endpoint))

    def end(node: int) -> operations.Operation[list[int]] | None:
        if node not in numbers:
            return None
        return operations.RestartRanks(numbers[node]) if restart else operations.KillRanks(numbers[node], _REASON)

    killed, missing = await attachment.ask_nodes(end)
    done = "restarted" if restart else "killed"
    complete = True
    for process in chosen:
        is_killed = frames.number_of(process.endpoint) in killed.get(process.node, ())
        complete = complete and is_killed
        ended = "it has ended already" if process.trouble.startswith("ended") else _NOT_KILLED
        trouble = "" if is_killed else missing.get(process.node, ended)
        facts = {"name": process.name, "pid": process.pid, "node": process.node_name, "trouble": trouble}
        if output.as_json:
            output.json(facts)
        else:
            outcome = f"not {done}: {trouble}" if trouble else done
            output.line(f"{process.name} (pid {process.pid} on {process.node_name}): {outcome}")
    return complete


async def down(attachment: Attachment, output: TextOutput) -> bool:
    """Shut a run down cleanly and wait for its daemons on this machine; return True if they have ended.

    Under ``rlinf-launch``, any node passes the request to the launcher, which reacts as it does to SIGTERM. A process
    whose ``Cluster`` started the nodes itself is not asked: its daemons, all on this machine, end, and the process
    continues without them.
    """
    run, by = attachment.run, f"rlinf-ctl down (pid {os.getpid()} on {os.uname().nodename})"
    loop, has_ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        pidfd = os.pidfd_open(attachment.pid)
        loop.add_reader(pidfd, has_ended.set)
    except OSError:  # the daemon has just ended, or has no pid here, in another pid namespace
        pidfd = -1
        attachment.lost.add_done_callback(lambda _: has_ended.set())
    try:
        # Ask the attached daemon last, because it forwards the other requests.  A launcher that receives the request
        # several times reacts once.
        answers, missing = await attachment.ask_nodes(
            lambda node: operations.EndRun(by) if node in run.sockets and node != attachment.node else None
        )
        by_launcher = any(answers.values())
        with contextlib.suppress(ClosedError):  # the daemon may exit before its answer is sent
            by_launcher = await attachment.request(operations.EndRun(by)) or by_launcher
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(attachment.deadline):
                await has_ended.wait()
        ended = has_ended.is_set() and not missing
    finally:
        if pidfd >= 0:
            loop.remove_reader(pidfd)
            os.close(pidfd)
    if output.as_json:
        output.json({"run": run.run, "ended": ended, "by_launcher": by_launcher, "missing": missing})
    elif ended:
        output.line(f"run {run.run} has ended" + (", by its launcher" if by_launcher else ""))
    else:
        reasons = "; ".join(missing.values()) or f"{attachment} is still there"
        output.note(f"run {run.run} has not ended: {reasons}\n  fix: `rlinf-ctl sweep {run.run}` kills what is left")
    return ended
