"""The page's document: data without markup, one script and one style that its policy admits, no other address."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import rlinf_launcher.control
from rlinf_launcher.control.page_document import document
from tests._support.made_run import HOSTILE


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def between(html: str, begin: str, end: str) -> str:
    return html.partition(begin)[2].partition(end)[0]


def test_data_cannot_leave_its_block() -> None:
    data = {"text": HOSTILE, "places": "@SCRIPT@ @DATA@ <!-- &lt; \u2028"}
    html = document("run @DATA@ @SCRIPT@", data).html
    assert "<title>run @DATA@ @SCRIPT@</title>" in html
    block = between(html, '<script type="application/json" id="data">', "</script>")
    assert "<" not in block
    assert json.loads(block) == data
    assert html.count("</script>") == 2


def test_a_title_is_no_markup() -> None:
    assert "<title>&lt;b> &amp;?</title>" in document("<b> &\ud800", None).html


def test_the_policy_admits_this_script_and_style_only() -> None:
    page = document("a run", {"text": HOSTILE})
    style, script = (
        between(page.html, "<style>", "</style>"),
        page.html.rpartition("<script>")[2].partition("</script>")[0],
    )
    assert f"script-src '{digest(script)}'" in page.policy
    assert f"style-src '{digest(style)}'" in page.policy
    assert "default-src 'none'" in page.policy
    assert "connect-src 'none'" in page.policy
    assert f'content="{page.policy}"' in page.html


def test_a_live_page_reaches_its_own_server_only() -> None:
    assert "connect-src 'self'" in document("a run", None).policy


def test_no_asset_names_an_address_or_makes_markup_of_text() -> None:
    folder = Path(rlinf_launcher.control.__file__).parent / "page"
    for asset in folder.iterdir():
        text = asset.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//\w+\.\w+/", text), asset.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            asset.name
        )


def test_every_asset_is_in_the_page() -> None:
    html = document("a run", None).html
    folder = Path(rlinf_launcher.control.__file__).parent / "page"
    scripts = {asset.name for asset in folder.glob("*.js")}
    assert scripts
    assert {name for name in scripts if f"// {name}\n" in html} == scripts
