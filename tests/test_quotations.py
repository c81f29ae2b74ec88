"""Quotations in the pages: code of the example, and messages of the product."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]

EXCERPTS = re.findall(
    r"```python (\S+)\n(.*?)```", (CHECKOUT / "docs" / "programming-flow.md").read_text(), flags=re.DOTALL
)


def stripped(code: str) -> str:
    """Return the code without indentation and empty lines."""
    return "".join(f"{line.strip()}\n" for line in code.splitlines() if line.strip())


@pytest.mark.parametrize(("file", "excerpt"), EXCERPTS, ids=[f"{file}-{at}" for at, (file, _) in enumerate(EXCERPTS)])
def test_an_excerpt_is_in_its_file(file: str, excerpt: str) -> None:
    rest = stripped((CHECKOUT / "examples" / "embodiment" / file).read_text())
    for part in stripped(excerpt).split("...\n"):
        _, found, rest = f"\n{rest}".partition(f"\n{part}")
        assert found, f"{file} does not have these lines, or in another order:\n{part}"


def literals(package: str) -> str:
    """Return the sources of a package, with adjacent string literals joined as the compiler joins them."""
    sources = "".join(path.read_text() for path in sorted((CHECKOUT / package).rglob("*.py")))
    return re.sub(r'"\s*\n\s*[fr]*"', "", sources)


SOURCES = "".join(literals(package) for package in ("rlinf_async", "launcher"))
MESSAGES = [
    message
    for block in re.findall(
        r"```text\n(.*?)```", (CHECKOUT / "docs" / "troubleshooting.md").read_text(), flags=re.DOTALL
    )
    for message in block.splitlines()
]
COMPOSED = re.compile(
    "ssh: Perm|package: |version: |its clock|rank |node |component |was killed by \0|is not awaited|the wait for|"
    "there was no|what arrived|channel |Error updating"
)
"""Messages of which the product puts several literals together, at colons, semicolons and parentheses."""


def test_the_page_has_its_messages() -> None:
    assert len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_the_fixed_parts_of_a_message_are_in_the_product(message: str) -> None:
    message = re.sub(r"<[^>]*>", "\0", message)
    for clause in re.split(r": |; |[()]|(?<=there was no )", message) if COMPOSED.match(message) else [message]:
        parts = [re.escape(part.strip()) for part in clause.split("\0") if part.strip()]
        assert re.search(r'[^"]{0,160}?'.join(parts), SOURCES), clause
