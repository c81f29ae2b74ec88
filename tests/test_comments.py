"""Comments that argue with a test: each test that the code names exists."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"\b(tests/[\w/]+\.py)::(?:\n *# )?(\w+)")


def missing(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED.findall(text)
        if not (CHECKOUT / path).is_file() or not re.search(rf"\bdef {name}\(", (CHECKOUT / path).read_text())
    ]


def test_every_test_that_the_code_names_exists() -> None:
    files = [file for folder in ("rlinf_async", "launcher") for file in (CHECKOUT / folder).rglob("*.py")]
    texts = {file.relative_to(CHECKOUT): file.read_text() for file in files}
    assert any(NAMED.search(text) for text in texts.values())
    wrong = [f"{file}: there is no {name}" for file, text in texts.items() for name in missing(text)]
    assert not wrong, "\n".join(wrong)


def test_a_name_that_no_test_has_is_seen() -> None:
    here = "tests/test_comments.py"
    assert missing(f"# {here}::test_a_name_that_no_test_has_is_seen") == []
    assert missing(f"# {here}::\n    # test_gone, tests/gone.py::test_x") == [
        f"{here}::test_gone",
        "tests/gone.py::test_x",
    ]
