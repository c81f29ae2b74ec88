"""Facts of the GPU proof: as lines, as a table, on the page."""

from __future__ import annotations

import pytest

from tests.gpu.report import FAILED, OK, SKIPPED, Fact, read_facts, state_of, table
from tests.gpu.table import BEGIN, END, with_facts

CARD = Fact("a", "gpu", value="NVIDIA H100")


def test_facts_are_read_as_they_were_written_but_for_a_line_that_is_not_whole() -> None:
    facts = [Fact("a", "kernel", OK, "6.1"), Fact("f", "copy", OK, 1.5, "GB/s", 0.2)]
    lines = [fact.to_line() + "\n" for fact in facts]
    assert read_facts([*lines, '{"step": "g", "na']) == facts


@pytest.mark.parametrize(
    ("states", "state"),
    [([OK, SKIPPED], OK), ([OK, FAILED, SKIPPED], FAILED), ([SKIPPED, SKIPPED], SKIPPED), ([], SKIPPED)],
)
def test_a_step_is_what_the_worst_of_its_facts_is(states: list[str], state: str) -> None:
    assert state_of([Fact("a", "it", each) for each in states]) == state


def test_the_table_has_a_row_per_fact_and_of_a_long_error_its_last_line() -> None:
    rows = table([Fact("f", "copy", OK, 1234.5678, "GB/s"), Fact("c", "test", FAILED, "Traceback\n  a | b")])
    assert rows.splitlines()[2:] == ["| f | copy | ok | 1235 GB/s |", "| c | test | FAILED | a \\| b |"]


def test_the_page_gets_the_new_facts_in_the_place_of_the_old_ones() -> None:
    page = f"# GPUs\n{BEGIN}old\n{END}the end\n"
    new = with_facts(page, [CARD, Fact("b", "it", FAILED, "no")], "2026-01-02")
    assert new.startswith(f"# GPUs\n{BEGIN}\n2026-01-02, NVIDIA H100, ")
    assert "1 ok, 1 FAILED, 0 skipped" in new
    assert "old" not in new
    assert new.endswith(f"{END}the end\n")
    assert with_facts(new, [CARD, Fact("b", "it", FAILED, "no")], "2026-01-02") == new


def test_a_report_without_a_gpu_and_a_page_without_its_place_are_refused() -> None:
    with pytest.raises(ValueError, match="names no GPU"):
        with_facts(f"{BEGIN}{END}", [Fact("b", "it")], "2026-01-02")
    with pytest.raises(ValueError, match="lacks the line"):
        with_facts("# GPUs\n", [CARD], "2026-01-02")
