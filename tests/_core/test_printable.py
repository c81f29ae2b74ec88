"""Escaping of terminal control characters in foreign text; colours stay."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from rlinf_async._core.printable import plain, printable


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\ttext ü", "plain\ttext ü"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[1;38;5;9mred", "\x1b[1;38;5;9mred\x1b[0m"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]52;c;bG9vaw==\x1b\\text", "text"),
        ("\x1b]0;never ended", ""),
        ("\x1bPq dcs \x1b\\text", "text"),
        ("\x1bctext\x1b(0", "text"),
        ("\x9b2Jtext\x9d0;title\x9c", "text"),
        ("bell\x07 back\x08", "bell back"),
        ("\r 10%\r 20%\r", " 20%"),
        ("a line of Windows\r", "a line of Windows"),
        ("cut \x1b[3", "cut 3"),
        ("\x1b[>4;2mkeys", "keys"),
    ],
)
def test_only_colours_reach_a_terminal(line: str, shown: str) -> None:
    assert printable(line) == shown


def test_plain_text_has_no_colours_either() -> None:
    assert plain("\x1b[1;31mred\x1b[0m \x1b[2Jtext") == "red text"


@given(st.text(st.sampled_from("\x1b[]P\\0;1mJ\x07\x9b\x9d\x9c\ra ?")))
def test_whatever_the_line_nothing_but_colours_is_left(line: str) -> None:
    assert re.sub(r"\x1b\[[0-9;:]*m", "", printable(line)).isprintable()
    assert "\x1b" not in line or printable(line).endswith(("\x1b[0m", "\x1b[m")) or "\x1b" not in printable(line)
