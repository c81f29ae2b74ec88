"""``python -m tests.gpu.table gpu-report``: puts the facts of a run into docs/gpu.md in place of the old."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.gpu.report import FAILED, OK, Fact, read_facts, table
from tests.gpu.run import CHECKOUT, PARTS

PAGE: Final = CHECKOUT / "docs" / "gpu.md"
BEGIN: Final = "<!-- facts of the last run: python -m tests.gpu.table gpu-report -->\n"
END: Final = "<!-- end of the facts -->\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="folder that `make gpu` has written")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    options = parser.parse_args(arguments)
    with (options.report / "facts.jsonl").open() as lines:
        facts = read_facts(lines)
    PAGE.write_text(with_facts(PAGE.read_text(), facts, options.date))


def with_facts(page: str, facts: Sequence[Fact], date: str) -> str:
    """Return the page with other facts.

    Raises:
        ValueError: the page does not have the two lines between which they stand, or no card is among the facts.
    """
    before, found, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"{PAGE.name} lacks the line {BEGIN.strip()!r} or {END.strip()!r}")
    named = {fact.name: fact.value for fact in facts}
    if "gpu" not in named:
        raise ValueError("the report names no GPU: run step a, on a machine that has one")
    counts = [f"{sum(fact.state == state for fact in facts)} {state}" for state in (OK, FAILED, "skipped")]
    head = f"{date}, {named['gpu']}, torch {named.get('torch')}, Linux {named.get('kernel')}: {', '.join(counts)}.\n\n"
    titles = "".join(f"- {part.letter}: {part.title}\n" for part in PARTS)
    return f"{before}{BEGIN}\n{head}{titles}\n{table(facts)}\n{END}{after}"


if __name__ == "__main__":
    main()
