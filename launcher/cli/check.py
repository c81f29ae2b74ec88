"""``--check``: runs the preflight on all hosts without starting a node; its result as a table or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..job import fresh_run_id
from ..options import Options
from ..remote.host_check import HostCheck
from ..remote.plan import Node
from ..report import Report, grid


@dataclass(frozen=True)
class CheckResult:
    """Result of ``--check``.  ``answers`` and ``binds`` (the addresses for the other nodes) are by rank."""

    nodes: Sequence[Node]
    answers: Mapping[int, Mapping[str, Any]]
    binds: Mapping[int, str | None]
    failures: Mapping[int, str]

    def text(self) -> str:
        """A table, then what is wrong with each host that failed."""
        titles = ["NODE", "STATE", "HOSTNAME", "PY", "TORCH", "RLINF-ASYNC", "ADDRESS", "CLOCK"]
        out = [grid(titles, [self._row(node) for node in self.nodes])]
        for rank, text in sorted(self.failures.items()):
            out += ["", self.nodes[rank].name, *(f"  {line}" for line in text.splitlines())]
        return "\n".join(out)

    def facts(self) -> Iterator[dict[str, Any]]:
        """One JSON object per host."""
        for node in self.nodes:
            failure = self.failures.get(node.rank)
            answer = self.answers.get(node.rank)
            yield {"event": "check", "rank": node.rank, "name": node.name, "failure": failure, "answer": answer}

    def _row(self, node: Node) -> list[str]:
        state = "failed" if node.rank in self.failures else "ok"
        answer = self.answers.get(node.rank)
        if answer is None:
            return [node.name, state, *["-"] * 6]
        known = [str(answer[key] or "-") for key in ("hostname", "python", "torch", "version")]
        return [node.name, state, *known, self.binds[node.rank] or "-", f"{round(answer['skew'], 1) + 0.0:+.1f} s"]


async def check(nodes: Sequence[Node], options: Options, python_path: str, report: Report) -> CheckResult:
    """Looks at all hosts at once, within ``--start-timeout``."""
    inspection = HostCheck(nodes, options, fresh_run_id(), report)
    inspection.python_path = python_path
    loop = asyncio.get_running_loop()
    report.begin("", nodes)
    try:
        failures = await inspection.look(options.start_timeout and loop.time() + options.start_timeout)
    finally:
        await inspection.close()
        report.close()
    return CheckResult(nodes, inspection.answers, inspection.binds(), failures)
