"""The journal of mutants that have run, and the page of survivors that is made of it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.mutation.mutants import Mutant
from tests.mutation.trials import Outcome

Row = dict[str, Any]
_HEAD: Final = """\
# Mutants

`make mutate` puts small defects into the modules of state and protocol, one at a time, in a copy of the checkout: a
comparison that is off by one, a dropped wake-up, a condition turned around. The tests that run the mutated line in any
of their processes, as recorded before ([the record](../tests/mutation/reach.py), `ARGS="--record"` makes it anew), run
first: those of the module's own file, then the shortest of each other. Seeds of the simulated cluster follow. A mutant
that nothing fails for is a survivor: the suite has a hole there, or the mutant does what the code does.

`make mutate ARGS="--count 300 --seed 0 --only _wire"` draws other mutants, or more of the same; mutants that are in
[the journal](mutants.jsonl) are not run again unless their module has changed. `ARGS="--survivors"` runs the survivors
again, `ARGS='--equivalent KEY "reason"'` records a verdict, and each run writes this page.
"""


class Journal:
    """Rows of JSON: one for each draw, run of a mutant, and verdict.  The latest run of a mutant counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.rows: list[Row] = []
        if path.exists():
            # The last line is torn where the machine went down: that mutant runs again.
            for line in path.read_text().splitlines():
                try:
                    self.rows.append(json.loads(line))
                except ValueError:
                    continue

    def add(self, row: Row) -> None:
        with self._lock, open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
            self.rows.append(row)

    def add_outcome(self, mutant: Mutant, source: bytes, outcome: Outcome) -> None:
        before, after = mutant.shown(source)
        self.add({
            "mutant": mutant.key, "source": mutant.source, "module": mutant.module, "line": mutant.line,
            "operator": mutant.operator, "before": before, "after": after,
            "killed_by": outcome.by, "seconds": outcome.seconds, **({} if outcome.is_decided else {"undecided": True}),
        })  # fmt: skip

    def has(self, mutant: Mutant) -> bool:
        return any(row.get("mutant") == mutant.key and row["source"] == mutant.source for row in self.rows)

    def outcomes(self) -> dict[str, list[Row]]:
        """Return the runs of each mutant, the latest last."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            if "mutant" in row:
                found.setdefault(row["mutant"], []).append(row)
        return found

    def survivors(self) -> set[str]:
        """Return the mutants whose latest run nothing failed in, and that have no verdict."""
        judged = self.verdicts()
        return {key for key, runs in self.outcomes().items() if not runs[-1]["killed_by"] and key not in judged}

    def verdicts(self) -> dict[str, str]:
        return {row["equivalent"]: row["because"] for row in self.rows if "equivalent" in row}

    def report(self) -> str:
        """Return the page."""
        runs, verdicts = self.outcomes(), self.verdicts()
        latest = [each[-1] for each in runs.values()]
        killed = [row for row in latest if row["killed_by"]]
        equivalent = [row for row in latest if not row["killed_by"] and row["mutant"] in verdicts]
        drawn = [f"`--count {row['count']} --seed {row['seed']}` of {row['of']}" for row in self.rows if "count" in row]
        seconds = sum(row["seconds"] for row in latest) / max(1, len(latest))
        by_seeds = sum(row["killed_by"].startswith("seed") for row in killed)
        lines = [
            _HEAD,
            f"Drawn last: {drawn[-1] if drawn else 'none'}. {len(latest)} mutants have run, {seconds:.0f} s each: "
            f"{len(killed)} killed ({_share(killed, latest)}), {by_seeds} of them by seeds, "
            f"{len(equivalent)} equivalent, {len(latest) - len(killed) - len(equivalent)} open.\n",
            "| package | run | killed | by seeds | equivalent | open |",
            "|---|---|---|---|---|---|",
            *_packages(latest, verdicts),
            "\n## Survivors\n\nLine numbers are of the day the mutant ran.\n",
            "| mutant | module | operator | before | after | verdict |",
            "|---|---|---|---|---|---|",
        ]
        for key, each in sorted(runs.items(), key=lambda item: (item[1][-1]["module"], item[1][-1]["line"])):
            if not each[-1]["killed_by"] or any(not row["killed_by"] and "undecided" not in row for row in each):
                row = each[-1]
                code = " | ".join(f"`` {row[side].replace('|', chr(92) + '|')} ``" for side in ("before", "after"))
                verdict = (
                    "undecided: its tests fail or need longer without it as well" if "undecided" in row else "open"
                )
                verdict = f"test added: `{row['killed_by']}`" if row["killed_by"] else verdict
                if not row["killed_by"] and key in verdicts:
                    verdict = f"equivalent: {verdicts[key]}"
                lines.append(f"| {key} | {row['module']}:{row['line']} | {row['operator']} | {code} | {verdict} |")
        return "\n".join(lines) + "\n"


def _share(part: Iterable[Row], whole: Iterable[Row]) -> str:
    return f"{100 * len(list(part)) / max(1, len(list(whole))):.0f} %"


def _packages(latest: Iterable[Row], verdicts: dict[str, str]) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for row in latest:
        package = "/".join(row["module"].split("/")[:2])
        count = counts.setdefault(package, Counter())
        count["run"] += 1
        if by := row["killed_by"]:
            count.update(["killed", *(["by seeds"] if by.startswith("seed") else [])])
        else:
            count["equivalent" if row["mutant"] in verdicts else "open"] += 1
    columns = ("run", "killed", "by seeds", "equivalent", "open")
    return [
        f"| {package} | {' | '.join(str(count[name]) for name in columns)} |"
        for package, count in sorted(counts.items())
    ]
