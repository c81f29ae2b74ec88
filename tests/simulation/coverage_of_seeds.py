"""Lines and branches of the protocol modules that seeds run: ``python -m tests.simulation.coverage_of_seeds``.

Each process traces its share of the seeds, and one table shows the sum.  A tracer doubles the time of a seed, so
``make simulate`` measures the first seeds only, in a run of their own.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PROCESSES: Final = 2
WANTED_PERCENT: Final = 90

MODULES: Final = (
    "launcher/daemon/channel_replies.py",
    "launcher/daemon/device_locks.py",
    "launcher/daemon/endpoint.py",
    "launcher/daemon/frame_holdback.py",
    "launcher/daemon/membership.py",
    "launcher/daemon/node_link.py",
    "launcher/daemon/routed_frames.py",
    "launcher/daemon/router.py",
    "rlinf_async/_client/client.py",
    "rlinf_async/_client/direct_calls.py",
    "rlinf_async/_cluster/supervision.py",
    "rlinf_async/_core/link_messages.py",
    "rlinf_async/_core/name_table.py",
    "rlinf_async/_core/pending_calls.py",
    "rlinf_async/_core/resend.py",
    "rlinf_async/_core/resource_locks.py",
    "rlinf_async/_group/members.py",
    "rlinf_async/_group/pool_calls.py",
    "rlinf_async/_group/rank_pool.py",
    "rlinf_async/_group/restart_budget.py",
    "rlinf_async/_group/restart_rounds.py",
    "rlinf_async/_messaging/exchange.py",
    "rlinf_async/_messaging/inbox.py",
    "rlinf_async/_messaging/landing.py",
    "rlinf_async/_messaging/mailbox.py",
    "rlinf_async/_messaging/outbox.py",
    "rlinf_async/_messaging/relay.py",
    "rlinf_async/_messaging/relayed_broadcast.py",
    "rlinf_async/_messaging/state/chain.py",
    "rlinf_async/_messaging/state/flow_control.py",
    "rlinf_async/_messaging/state/matching.py",
    "rlinf_async/_messaging/state/relay_plan.py",
    "rlinf_async/_wire/acknowledgements.py",
    "rlinf_async/_wire/daemon_link.py",
    "rlinf_async/_wire/send_buffer.py",
    "rlinf_async/_wire/socket_writer.py",
    "rlinf_async/_worker/concurrent_calls.py",
    "rlinf_async/_worker/device_lock.py",
    "rlinf_async/_worker/direct_callers.py",
    "rlinf_async/stream.py",
)
"""The modules whose branches hold a promise: of calls, streams, messages, locks, links and restarts.

Queues of channels (``rlinf_async/_channels``, ``launcher/daemon/channels.py``) and weights are judged by their public
behaviour alone.
"""

UNREACHED: Final[tuple[tuple[str, str], ...]] = (
    (r"def __repr__\(", "texts for a debugger"),
    (r"^\s*\.\.\.$|: \.\.\.$", "bodies of protocols"),
    (
        r"raise (FrameError|AuthError)\(",
        "no simulated process sends frames that make no sense, or that it may not send",
    ),
    (
        r"raise KeyError\(f\"(\{self\.kind\}|this process has)"
        r"|raise ValueError\(f\"(a channel's roster|promise \{|nobody)"
        r"|except ValueError:(?=\n\s+raise ValueError\(f\"a promise)",
        "the same",
    ),
    (r"not is_well_formed\(|not is_valid_queue_frame\(|not frames\.is_call_sound\(|!= node_link\.node:$", "the same"),
    (r"a piece of a body lies outside|a lease of", "the same"),
    (r"sent a frame of kind|is_authenticated and kind != TENSOR", "the same"),
    (r"raise ValueError\(f\"(\{received\} messages|a bulk piece)", "the same"),
    (r"^def _on_error\(", "no method of a random program breaks out of its loop"),
    (r"if len\(self\._closed\) > MAX_CLOSED_NAMES:", "a run of a simulation closes fewer names"),
    (r"\bif .*(in GPU_LINKS|\bby_gpu\b|\bis_on_gpu\b|, DevicePayload\)).*:", "a simulation has no GPU"),
    (r"def _abandon_gpu_link\(|== message_facts\.GPU:", "the same"),
    (
        r"raise process\.forked\(|if self\._?pid != process\.pid:|def leave_to_parent\(|def _leave_all_to_parent\(",
        "simulated processes do not fork",
    ),
    (
        r"except (\(OSError, )?MemoryError\)? as \w+:|raise MemoryError\(",
        "the memory of the machine does not run out",
    ),
    (r"except OSError as \w+:  # no descriptors? ", "simulated processes share the descriptors of a real one"),
    (
        r"raise \w+Error\((f\"(send_tensor|recv_tensor|options=|timeout=|\{ticket\})|_CONTIGUOUS)",
        "mistakes in the arguments of a call, which tests of that call make",
    ),
    (
        r"raise (RuntimeError|AttributeError)\(($|f\"(Lock is not acquired|'Stream' object|\{self!r\} has been iter))",
        "the same",
    ),
    (r"if self\._me not in members:|raise TypeError\(f\"\{self\._name\} of a link", "the same"),
    (
        r"def send_signal\(|def _on_restart_wanted\(",
        "operators send signals and ask for restarts; a simulation has none",
    ),
    (
        r"def send_lines\(|def _report_left_out\(|frame\[4\] == \"output\":",
        "simulated workers have no stdout of their own",
    ),
    (
        r"def join\(self, name: str, rank|if ranks := |def roster_with\(|endpoint\.root is not None:",
        "subprocesses of workers, which join a group, are no simulated processes",
    ),
    (r"if is_recorded|recorder\.recorder is not None|if recording\.admits\(\):", "no flight recorder is open"),
    (r"emulated_links\.here is None|def go\(\) -> None:", "no links are emulated on top of the simulated ones"),
    (r"\bown\.keeps\(|_devices\.is_awaited:|in_flight\.by_gpu", "a simulation has no GPU"),
    (r"if _all_closed\(\):|if fds and _all_closed\(\):", "a simulated process has one client"),
    (
        r"def end_without_loop\(|loop\.is_closed\(\):|raise loop_watch\.closed\(",
        "the loop of a simulated process lasts as long as the process",
    ),
    (
        r"def flush_at_exit\(|def flush_blocking\(",
        "a simulated process has no exit of the interpreter",
    ),
    (r"def end_as\(", "simulated daemons that have ended do not start again"),
    (
        r"if relay is not None:  # the other receivers|if waited and len\(stream\.receivers\) > 1:",
        "no receiver refuses an object: the memory of the machine does not run out",
    ),
    (r"> MAX_FRAME_BYTES:", "frames of 4 GiB do not fit into the memory of a test"),
    (r"for copy in sets:|for fds in copies:", "simulated processes share the descriptors of a real one"),
    (
        r"def parse_port_range\(|raise ValueError\(f\"max_port_num|return range\(_LOWEST_PORT",
        "ports come from the kernel and from the command line",
    ),
    (r"if placement\.hardware_type|if not placement\.local_hardware_ranks:", "simulated nodes have no accelerators"),
    (
        r"# abandoned while it left$|\.error is not None:\n(?=\s+self\._fail\(stream\))"
        r"|# withdrawn meanwhile|if in_flight\.number not in stream\.open:  #",
        "threads of a simulation take turns where they wait, and nothing else happens in between",
    ),
    (r"if in_flight\.number in stream\.open:\n(?=\s+self\._rollback)", "the same"),
    (r"# it has come since, and|if self\.withdraw\(call\):|# else it has been answered meanwhile", "the same"),
    (r"if self\._told is None:$", "the same"),
    (
        r"def fail_content\(|isinstance\((error, MemoryError|rest, Exception)\)",
        "the memory of the machine does not run out",
    ),
    (
        r"failed_hosts = \[\*transfer|\[0\] not in failed_hosts:|if carrier in self\._hosts:",
        "what has left for a process that lives has come: no link fails for good",
    ),
    (r"if transfer\.has_room:$", "the same"),
    (r"if broadcast is not None:$", "the garbage of a simulation is collected at its end"),
    (r"the memory that was announced", "a host keeps its descriptor for as long as others may be told of it"),
    (
        r"if self\.over is not None:(?=\n\s+return\n\s+(try:|transfer, size))"
        r"|if self\.over is None:(?=\n\s+self\._drop\(reason)",
        "a link has one end, unless its own frames make no sense",
    ),
    (r"if op\.epoch <= self\.epoch:", "node 0's words come once, and in their order"),
    (r"node_links\.get\(op\.node\)\) is not None:", "faults of a simulation begin once all links are up"),
    (r"was closed, or has left", "subprocesses of workers, which join a group, are no simulated processes"),
    (
        r"isinstance\(content, str\)|if isinstance\(segment, Segment\):|if not self\._send\(stream, in_flight\):",
        "neither memory nor descriptors run out, and what is packed once can be packed again",
    ),
    (
        r"if callee\.ranks\[slot\] in self\._held:|# added meanwhile, by it"
        r"|# since this call was admitted|# meanwhile, maybe",
        "threads of a simulation take turns where they wait, and nothing else happens in between",
    ),
    (
        r"if resumed\.done\(\) and resumed\.exception|if self\._ending or self\._verdict:|startswith\(_BREAK_OFF\)",
        "a connection does not come in the moment of a close; tests/_wire/test_daemon_link.py drives these moments",
    ),
    (r"if self\.client\.user_loop is None:", "callbacks of a simulated program do not end it"),
    (r"in_flight\.attempts > _MAX_ATTEMPTS", "what has left for a process that lives has come: no link fails for good"),
    (
        r"if producer\.process is None:|> _MAX_GONE_GROUPS:|== _MAX_ITEMS_PER_FRAME:",
        "a program has one driver, which ends with it, and fewer groups and items",
    ),
    (
        r"def (packed|abandon)\(self, number|def (catch_up|lost)\(self, rec",
        "only versions of weights are packed while they leave, or come late; tests/_messaging/state drive these events",
    ),
)
"""Regular expressions of lines that no simulated program reaches, each with the block that it opens, and why."""


@dataclass(frozen=True)
class Row:
    """Coverage of one module.

    Attributes:
        missing: by function, the branches that no seed has taken: from line to line, 0 for the function's end.
    """

    module: str
    lines: int
    lines_run: int
    branches: int
    branches_run: int
    missing: tuple[str, ...] = ()

    @property
    def percent(self) -> float:
        return 100 * self.branches_run / self.branches if self.branches else 100.0

    def __str__(self) -> str:
        lines, branches = f"{self.lines_run}/{self.lines}", f"{self.branches_run}/{self.branches}"
        mark = "" if self.percent >= WANTED_PERCENT else " <"
        share = 100 * self.lines_run / max(1, self.lines)
        return f"{self.module:<50} {lines:>9} {share:4.0f} % {branches:>9} {self.percent:4.0f} %{mark}"


def measure(seeds: int, first: int = 0) -> list[Row]:
    """Play seeds under the tracer in processes of their own, and return a row for each module."""
    with tempfile.TemporaryDirectory(prefix="rlinf-coverage-") as folder:
        share = -(-seeds // PROCESSES)
        shares = [(begin, min(begin + share, first + seeds)) for begin in range(first, first + seeds, share)]
        with ThreadPoolExecutor(PROCESSES) as processes:
            for told in processes.map(lambda each: _play_elsewhere(folder, *each), shares):
                print(told, end="", flush=True)
        tracer = _tracer(folder)
        for pattern, _ in UNREACHED:
            tracer.exclude(pattern)
        tracer.combine([folder])
        report = Path(folder, "report.json")
        tracer.json_report(outfile=str(report))
        return list(_rows(json.loads(report.read_text())["files"]))


def _tracer(folder: str) -> coverage.Coverage:
    included = [str(CHECKOUT / module) for module in MODULES]
    data = str(Path(folder, "data"))
    return coverage.Coverage(data, data_suffix=True, branch=True, config_file=False, include=included)


def _play_elsewhere(folder: str, first: int, last: int) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation.coverage_of_seeds", str(last - first)]
    command += ["--first", str(first), "--play-into", folder]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout


def _play(folder: str, first: int, last: int) -> None:
    """Play seeds in this process; its imports of the modules are to be traced too."""
    tracer = _tracer(folder)
    tracer.start()
    sys.argv[1:] = [str(first), str(last)]
    runpy.run_module("tests.simulation", run_name="__main__")
    tracer.stop()
    tracer.save()


def _rows(files: dict[str, dict[str, Any]]) -> Iterator[Row]:
    for module in MODULES:
        summary, functions = files[module]["summary"], files[module]["functions"]
        missing = {
            name: [(start, max(end, 0)) for start, end in each["missing_branches"]] for name, each in functions.items()
        }
        yield Row(
            module,
            summary["num_statements"],
            summary["covered_lines"],
            summary["num_branches"],
            summary["covered_branches"],
            tuple(
                f"{name} " + " ".join(f"{start}→{end}" for start, end in branches)
                for name, branches in missing.items()
                if branches
            ),
        )


def tell(rows: Sequence[Row]) -> str:
    total = Row(
        "all", *(sum(getattr(row, name) for row in rows) for name in ("lines", "lines_run", "branches", "branches_run"))
    )
    head = f"{'module':<50} {'lines':>16} {'branches':>16}"
    return "\n".join([head, *map(str, rows), str(total)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.coverage_of_seeds", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--missing", default="", help="name the branches that no seed takes, of modules with this in their path"
    )
    parser.add_argument("--play-into", default="", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.play_into:
        _play(flags.play_into, flags.first, flags.first + flags.seeds)
        return
    rows = measure(flags.seeds, flags.first)
    print(tell(rows))
    for row in rows:
        if flags.missing and flags.missing in row.module:
            print("\n  ".join([row.module, *row.missing]))


if __name__ == "__main__":
    main()
