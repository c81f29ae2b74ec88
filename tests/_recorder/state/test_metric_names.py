"""Names of metrics in a ring's cells, and the table of the framework's own with its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rlinf_async._recorder.state import metric_table
from rlinf_async._recorder.state.event_ring import EventRing, MetricKind, size_of
from rlinf_async._recorder.state.metric_names import cell_name, complaint, split_cell
from rlinf_async._recorder.state.metric_table import MetricFamily
from rlinf_async._recorder.state.ring_contents import RingContents, RingMetric, metrics_of

GAUGE, COUNTER = MetricKind.GAUGE, MetricKind.COUNTER
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
LABELS = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,9}", fullmatch=True), st.text(), max_size=4)


@given(LABELS)
def test_labels_with_any_values_are_found_again(labels: dict[str, str]) -> None:
    assert split_cell(cell_name("return", labels)) == ("return", labels)


def test_a_cell_is_written_as_prometheus_does_and_the_order_of_labels_does_not_count() -> None:
    assert cell_name("return", {"b": 'say "hi"\\', "a": "x\ny"}) == r'return{a="x\ny",b="say \"hi\"\\"}'
    assert cell_name("return", {"a": 1, "b": 2}) == cell_name("return", {"b": 2, "a": 1})
    assert split_cell("return") == ("return", {})


@pytest.mark.parametrize(
    ("kind", "name", "labels", "words"),
    [
        (GAUGE, "mean return", {}, "letters, digits and underscores"),
        (GAUGE, "", {}, "letters, digits and underscores"),
        (GAUGE, "1st", {}, "a letter before any digit"),
        (GAUGE, "__", {}, "a letter before any digit"),
        (COUNTER, "_total", {}, "a letter before any digit"),
        (COUNTER, "n_total_total", {}, "end with it once"),
        (GAUGE, "rlinf_ranks", {}, "'rlinf_' are the framework's"),
        (GAUGE, "episodes_total", {}, "use counter()"),
        (GAUGE, "loss", {"rank": 3}, "label 'rank' is added by the framework"),
        (GAUGE, "loss", {"__name__": 3}, "begins with a letter"),
        (GAUGE, "loss", {"größe": 3}, "label 'größe'"),
        (GAUGE, "loss", {"task": "x" * 200}, "have 213 bytes, more than 200"),
    ],
)
def test_what_can_be_no_metric_is_told_with_the_fix(
    kind: MetricKind, name: str, labels: dict[str, object], words: str
) -> None:
    assert words in complaint(kind, name, labels)


@pytest.mark.parametrize(("kind", "name"), [(GAUGE, "return"), (GAUGE, "_x9"), (COUNTER, "episodes_total")])
def test_a_metric_like_others_has_no_complaint(kind: MetricKind, name: str) -> None:
    assert complaint(kind, name, {"task": "x" * 150, "of": "größe"}) == ""


def test_the_metrics_of_a_ring_are_read_without_its_events() -> None:
    data = bytearray(size_of(8))
    ring = EventRing(data, 8, {"process": "a:0"})
    ring.store(ring.cell(COUNTER, 'n{a="b"}') or 0, 2.5)
    assert (
        metrics_of(bytes(data[: size_of(0)]))
        == [RingMetric(COUNTER, 'n{a="b"}', 2.5)]
        == RingContents.read(data).metrics
    )
    with pytest.raises(ValueError, match="no ring"):
        metrics_of(bytes(size_of(8)))  # a file that is being made
    with pytest.raises(ValueError, match="no ring"):
        metrics_of(bytes(data[:100]))


@pytest.mark.parametrize("family", metric_table.ALL, ids=lambda family: str(family.name))
def test_a_metric_of_the_framework_says_its_kind_and_unit_by_its_name(family: MetricFamily) -> None:
    assert re.fullmatch(r"rlinf_[a-z_]+", family.name)
    assert family.name.endswith("_total") == (family.kind == COUNTER)
    assert family.about
    assert "node" not in family.labels


def test_there_are_some_twenty_and_the_documents_list_them() -> None:
    assert 10 <= len({family.name for family in metric_table.ALL}) == len(metric_table.ALL) <= 21
    assert f"\n{metric_table.table()}\n\n" in PAGE.read_text() + "\n"
