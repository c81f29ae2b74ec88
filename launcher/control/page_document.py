"""The page as one HTML document: markup, style and scripts from ``page/``, and the data.

Workers' output never becomes markup: the data is a JSON block with ``<``, ``>`` and ``&`` escaped, which the scripts
show through ``textContent`` only. The content security policy admits only this script and style, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

_ASSETS: Final = Path(__file__).parent / "page"

_SCRIPTS: Final = (
    *("format", "elements", "model", "range", "palette", "rows", "painter", "timeline"),
    *("charts", "waits", "troubles", "phases", "logs", "main"),
)
"""Scripts in the order of their dependencies."""


@dataclass(frozen=True)
class PageDocument:
    """A page and its content security policy, which the server also sends as a header."""

    html: str
    policy: str


def document(title: str, data: Mapping[str, Any] | None) -> PageDocument:
    """Return the page; if ``data`` is None, the page loads its data from the relative URL ``events``."""
    style, script = _style(), _script()
    sources = "'self'" if data is None else "'none'"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}'",
            f"style-src 'sha256-{_digest(style)}'",
            f"connect-src {sources}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    pieces = {
        "@TITLE@": _text(title),
        "@POLICY@": policy,
        "@STYLE@": style,
        "@DATA@": _json(data),
        "@SCRIPT@": script,
    }
    # Substitute in one pass: a title or data may contain the placeholders of other pieces.
    html = re.sub("|".join(pieces), lambda place: pieces[place[0]], _asset("page.html"))
    return PageDocument(html, policy)


def _json(data: Mapping[str, Any] | None) -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # browsers refuse NaN
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _text(text: str) -> str:
    return text.encode(errors="replace").decode().replace("&", "&amp;").replace("<", "&lt;")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _style() -> str:
    return "\n" + _asset("page.css")


@cache
def _script() -> str:
    parts = [f"// {name}.js\n{_asset(f'{name}.js')}" for name in _SCRIPTS]
    return "\n" + "\n".join(['"use strict";', "(() => {", *parts, "})();", ""])


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
