"""Tables, ages and sizes; output of workers cannot move the cursor."""

from __future__ import annotations

import io
import re

import pytest

from rlinf_launcher.control.text_output import TextOutput, age, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", b"\xc3\xa4\\udcff\n"), ("ascii", b"\\xe4\\udcff\n")])
def test_a_name_that_is_no_text_is_shown(encoding: str, shown: bytes) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    TextOutput(stream, as_json=False).line("ä\udcff")
    assert stream.buffer.getvalue() == shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.1, "0.0 s"),
        (0.44, "0.4 s"),
        (42.4, "42 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_an_age_has_two_units_at_most(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (512, "512 B"), (1500, "1.5 kB"), (80_000_000_000, "80.0 GB"), (2 * 10**12, "2000.0 GB")],
)
def test_a_size_has_one_unit(count: int, text: str) -> None:
    assert size(count) == text


def test_workers_colours_stay_on_a_terminal_only() -> None:
    for stream, shown in ((Terminal(), "[a:0] \x1b[31mred\x1b[0m\n"), (io.StringIO(), "[a:0] red\n")):
        TextOutput(stream, as_json=False).worker_line("[a:0] ", "\x1b[31mred\x1b[2J\x1b[0m")
        assert stream.getvalue() == shown


def test_a_piped_table_is_uncut_and_uncoloured() -> None:
    stream = io.StringIO()
    TextOutput(stream, as_json=False).table(["NAME", "DOES"], [["\x1b[2Jrollout:0", "x" * 200], ["[bold]a", "-"]])
    assert stream.getvalue().splitlines() == ["NAME       DOES", f"rollout:0  {'x' * 200}", "[bold]a    -"]


def test_a_fitting_table_aligns_wide_and_multiline_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    TextOutput(stream, as_json=False).table(["NAME", "DOES", "PID"], [["模型", "a\nb", "1"], ["rollout", "-", "2"]])
    expected = ["\x1b[1mNAME     DOES  PID\x1b[0m", "模型     a     1", "         b", "rollout  -     2"]
    assert stream.getvalue().splitlines() == expected


def test_a_table_on_a_terminal_wraps_to_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    TextOutput(stream, as_json=False).table(
        ["NAME", "LOGS", "DOES"], [["rollout:0", "/logs/" + "x" * 60, "word " * 20]]
    )
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in stream.getvalue().splitlines()]
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("word") == 20
    assert "".join(lines).count("x") == 60
