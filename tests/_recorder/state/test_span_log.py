"""``SpanLog``: records of any length are written whole."""

from __future__ import annotations

from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog


def test_the_name_of_an_error_is_cut_however_long() -> None:
    buffer = bytearray(RECORDS_AT + (1 << 14))
    log = SpanLog(buffer, {"run": "r"}, (lambda: False, lambda *_: 0, lambda *_: None))
    log.end(log.begin(EventKind.WAIT, "lock"), "E" * 10_000)
    assert b"E" * 200 in buffer
    assert b"E" * 201 not in buffer
