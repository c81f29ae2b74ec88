"""``--check``: runs the preflight on all hosts without starting a node, and prints a table or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..job import fresh_run_id, missing_script_text, script_is_missing
from ..options import Options
from ..remote.host_check import HostCheck
from ..remote.plan import PlannedNode
from ..report import Report, grid


@dataclass(frozen=True)
class CheckResult:
    """Result of ``--check``: each rank's answer, address to bind, error text, and description of the checks made."""

    nodes: Sequence[PlannedNode]
    answers: Mapping[int, Mapping[str, Any]]
    binds: Mapping[int, str | None]
    failures: Mapping[int, str]
    checked: Mapping[int, Sequence[str]]

    def text(self) -> str:
        titles = ["NODE", "STATE", "HOSTNAME", "PY", "TORCH", "RLINF-ASYNC", "ADDRESS", "CLOCK"]
        out = [grid(titles, [self._row(node) for node in self.nodes])]
        for rank, text in sorted(self.failures.items()):
            out += ["", self.nodes[rank].name, *(f"  {line}" for line in text.splitlines())]
        return "\n".join([*out, *self._told_checks()])

    def _told_checks(self) -> Iterator[str]:
        alike: dict[tuple[str, ...], list[str]] = {}
        for node in self.nodes:
            if checks := self.checked[node.rank]:
                alike.setdefault(tuple(checks), []).append(node.name)
        for checks, names in alike.items():
            yield from ("", f"checked on {', '.join(names)}:", *(f"  {check}" for check in checks))
        unchecked = ["GPUs", *["whether the hosts reach each other"][: len(self.nodes) > 1]]
        yield from ("", f"not checked: {', '.join(unchecked)}")

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield one JSON object per host."""
        for node in self.nodes:
            failure = self.failures.get(node.rank)
            answer = self.answers.get(node.rank)
            outcome = {"failure": failure, "checked": self.checked[node.rank], "answer": answer}
            yield {"event": "check", "rank": node.rank, "name": node.name, **outcome}

    def _row(self, node: PlannedNode) -> list[str]:
        state = "failed" if node.rank in self.failures else "ok"
        answer = self.answers.get(node.rank)
        if answer is None:
            return [node.name, state, *["-"] * 6]
        known = [str(answer[key] or "-") for key in ("hostname", "python", "torch", "version")]
        return [node.name, state, *known, self.binds[node.rank] or "-", f"{round(answer['skew'], 1) + 0.0:+.1f} s"]


async def check(nodes: Sequence[PlannedNode], options: Options, python_path: str, report: Report) -> CheckResult:
    inspection = HostCheck(nodes, options, fresh_run_id(), report)
    inspection.python_path = python_path
    loop = asyncio.get_running_loop()
    report.begin("", nodes)
    try:
        failures = await inspection.look(options.start_timeout and loop.time() + options.start_timeout)
    finally:
        await inspection.close()
        report.close()
    checked = {node.rank: inspection.checked(node.rank) for node in nodes}
    _look_for_script(nodes, options, failures, checked)
    return CheckResult(nodes, inspection.answers, inspection.binds(), failures, checked)


def _look_for_script(
    nodes: Sequence[PlannedNode], options: Options, failures: dict[int, str], checked: Mapping[int, list[str]]
) -> None:
    """Check on this machine that the script exists; in a real run Python itself reports a missing script."""
    rank = next(node.rank for node in nodes if node.is_here)
    if options.script is None or options.module or not checked[rank]:
        return
    checked[rank].append(f"script {options.script}")
    if script_is_missing(options):
        failures[rank] = "\n".join(filter(None, [failures.get(rank), missing_script_text(options)]))
