"""The page in headless Chromium: what it shows, how it is steered, what it refuses, and how soon it is there.

``RLINF_PAGE_PICTURES`` names the folder of the pictures; else they are in the temporary directory of the tests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async._recorder.state.event_ring import SKIPPED, EventKind, MetricKind
from rlinf_async._recorder.state.ring_contents import RingMetric
from rlinf_launcher.control.page_document import document
from rlinf_launcher.control.page_server import PageServer
from rlinf_launcher.control.run_page import document_of
from tests._support.browser import Page, chromium
from tests._support.made_rings import operation, point, ring
from tests._support.made_run import OFFSET, made_run
from tests.launcher.control.test_page_server import HandFed

pytestmark = pytest.mark.shared_cluster  # a browser, in fact

VISIBLE_FOCUS = (
    "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
    " || document.activeElement.closest('.box, .skip') !== null"  # these have a thicker line, and appear
)
UNNAMED = "(each) => !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length)"
DRAWN = "performance.getEntriesByName('drawn').length"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("RLINF_PAGE_PICTURES")
    if not folder:
        return tmp_path_factory.mktemp("pictures")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory, 4000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory, 100_000)


def written(folders: pytest.TempPathFactory, events: int) -> str:
    """Return the address of a page on the disk, with all its data."""
    run = made_run(events)
    assert sum(len(ring.events) for ring in run.rings) >= events
    path = folders.mktemp("page") / "run.html"
    path.write_text(document_of(run).html)
    return path.as_uri()


def shown(page: Page, address: str, **window: Any) -> None:
    page.open(address, **window)
    page.wait_for(DRAWN)


def canvas(page: Page) -> tuple[float, float, float]:
    """Return left, top and width of the timelines."""
    box = page.evaluate(
        "(({left, top, width}) => [left, top, width])(document.getElementById('canvas').getBoundingClientRect())"
    )
    return box[0], box[1], box[2]


def range_of(page: Page) -> str:
    page.evaluate("new Promise(requestAnimationFrame)")
    return page.text("#span-text")


def test_a_page_from_disk_shows_all_and_runs_nothing(page: Page, small: str) -> None:
    shown(page, small)
    assert page.complaints == [], "of scripts, or of the policy"
    assert page.evaluate("document.title") == "rlinf run cc6c3c8c"
    assert page.evaluate("document.images.length") == 0
    assert "deadlock" in page.text("#verdict").lower()
    assert "</script><script>" in page.text("#log-lines"), "as text"
    assert "rollout:1" in page.text("#troubles")
    assert page.evaluate("document.querySelectorAll('#waits .box').length") == 6
    assert page.evaluate("document.querySelectorAll('#phases tbody tr').length") >= 5
    assert page.evaluate("document.querySelectorAll('#versions .strip').length") == 6
    assert page.text("#channels tbody td").strip() == "obs"
    assert page.evaluate("[...document.querySelectorAll('#groups button')].map((each) => each.textContent)") == [
        "▾ driver 1", "▾ actor 2", "▾ rollout 6",
    ]  # fmt: skip


def test_a_page_says_what_is_not_known_and_why(page: Page, tmp_path: Path) -> None:
    run = made_run(2000, is_stuck=False)
    rings = [dataclasses.replace(ring, metrics=[RingMetric(MetricKind.COUNTER, SKIPPED, 16.0)]) for ring in run.rings]
    missing = {"its verdict": "the script had ended before the run could be asked"}
    run = dataclasses.replace(run, rings=rings, is_alive=True, status=None, missing=missing)
    path = tmp_path / "run.html"
    path.write_text(document_of(run).html)
    shown(page, path.as_uri())
    cells = page.evaluate("[...document.querySelectorAll('#channels tbody tr > *')].map((each) => each.textContent)")
    assert cells == ["obs", "unknown", "unknown", f"{16 * len(rings)} operations left out at a high rate"]
    said = "There is no verdict: the script had ended before the run could be asked."
    assert page.text("#waits-body").strip() == said
    assert page.complaints == []


@pytest.mark.browser
def test_a_hundred_thousand_events_are_drawn_within_five_seconds(page: Page, large: str) -> None:
    shown(page, large)
    took = page.evaluate("performance.getEntriesByName('drawn')[0].startTime")
    print(f"100 000 events are drawn {took:.0f} ms after navigation")
    assert took < 5000
    assert int(page.text("#facts").split("events")[1].replace(",", "")) >= 100_000
    assert page.complaints == []


@pytest.mark.browser
def test_hundreds_of_ranks_over_weeks_are_shown_and_reached(page: Page, tmp_path: Path) -> None:
    day = 86_400 * 10**9
    steps = range(300)
    published = [point(EventKind.VERSION, "published policy", 1 + step * day // 10, step + 1) for step in steps]
    applied = [point(EventKind.VERSION, "applied policy", 2 + step * day // 10, step) for step in steps]
    rings = [ring("trainer:0", *published, wall_offset=OFFSET)]
    served = operation(EventKind.SERVE, "step", 1, 2)
    rings += [ring(f"rollout:{rank}", served, *applied, wall_offset=OFFSET) for rank in range(256)]
    run = dataclasses.replace(made_run(500), rings=rings, logs={"a/rank_0.out": f"{'e' * 30}\n" * 3000})
    path = tmp_path / "run.html"
    path.write_text(document_of(run).html)
    shown(page, path.as_uri())
    page.evaluate(
        "window.ticks = []; const paint = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, x, y)"
        " { if (y === 11) ticks.push(x); return paint.call(this, text, x, y); }"
    )
    page.evaluate("document.getElementById('zoom-all').click()")
    page.wait_for("ticks.length")
    ticks = sorted(set(page.evaluate("ticks")))
    assert min(after - before for before, after in itertools.pairwise(ticks)) > 60, "no label covers another"
    page.evaluate("document.getElementById('log-search').focus()")
    page.press("e")
    assert page.text("#log-count") == "3,000 lines found", "with more matches than a call has room for arguments"
    page.evaluate("document.getElementById('canvas').focus()")
    page.press("ArrowUp")
    assert page.evaluate("document.getElementById('rows').scrollTop") > 800, "the last rank of a folded group"
    assert page.complaints == []


@pytest.mark.browser
def test_wheel_zooms_drag_pans_and_all_resets(page: Page, small: str) -> None:
    shown(page, small)
    whole = range_of(page)
    left, top, width = canvas(page)
    page.mouse("mouseWheel", left + width / 2, top + 60, deltaX=0, deltaY=-240)
    page.wait_for(f"document.getElementById('span-text').textContent !== {json.dumps(whole)}")
    zoomed = range_of(page)
    before = page.evaluate("document.querySelector('.chart .line').getAttribute('d')")
    page.mouse("mousePressed", left + 700, top + 60, button="left", clickCount=1)
    for x in (650, 600, 500):
        page.mouse("mouseMoved", left + x, top + 60, button="left", buttons=1)
    page.mouse("mouseReleased", left + 500, top + 60, button="left", clickCount=1)
    page.wait_for(f"document.querySelector('.chart .line').getAttribute('d') !== {json.dumps(before)}")
    assert range_of(page) == zoomed, "a drag is no zoom"
    dragged = page.evaluate("document.querySelector('.chart .line').getAttribute('d')")
    page.mouse("mousePressed", left + 700, top + 60, button="right", clickCount=1)
    page.mouse("mouseMoved", left + 500, top + 60)
    assert range_of(page) == zoomed
    panned = page.evaluate("document.querySelector('.chart .line').getAttribute('d')") != dragged
    assert not panned, "a button whose release a menu has swallowed drags nothing"
    page.evaluate("document.getElementById('zoom-all').click()")
    assert range_of(page) == whole


@pytest.mark.browser
def test_a_span_under_the_pointer_is_described(page: Page, small: str, pictures: Path) -> None:
    shown(page, small)
    left, top, _ = canvas(page)
    page.mouse("mouseMoved", left + 150, top + 22 + 10)
    page.wait_for("!document.getElementById('tip').hidden")
    assert "step" in page.text("#tip")
    page.mouse("mouseMoved", 2, 2)
    page.evaluate("document.getElementById('canvas').focus()")
    page.press("ArrowDown", "ArrowDown", "n")
    said = page.evaluate("document.getElementById('said').textContent")
    assert "obs" in said
    assert "actor:0" in said
    page.press("Enter")
    assert range_of(page).endswith("ms")
    page.picture(pictures / "selected.png")
    page.press("Escape", "0")
    assert page.evaluate("document.getElementById('tip').hidden")


@pytest.mark.browser
def test_a_group_folds_to_one_row_by_its_button(page: Page, small: str) -> None:
    shown(page, small)
    before = page.evaluate("document.getElementById('spacer').offsetHeight")
    page.evaluate("document.querySelector('[data-group=rollout]').focus()")
    page.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false", "and keeps the focus"
    assert page.evaluate("document.getElementById('spacer').offsetHeight") < before


@pytest.mark.browser
def test_everything_is_reached_by_tab_with_visible_focus(page: Page, small: str) -> None:
    shown(page, small)
    reached = []
    while True:
        page.press("Tab")
        name = page.evaluate("(({id, tagName}) => id || tagName)(document.activeElement)")
        if name == "BODY" or len(reached) > 100:
            break
        reached.append(name)
        assert page.evaluate(VISIBLE_FOCUS), name
    assert {"theme", "zoom-in", "canvas", "log-file", "log-search", "log-lines"} <= set(reached)
    assert (
        page.evaluate(f"[...document.querySelectorAll('button, canvas, select, input')].filter({UNNAMED}).length") == 0
    )


@pytest.mark.browser
def test_logs_are_searched_in_all_files_or_in_one(page: Page, small: str) -> None:
    shown(page, small)
    page.evaluate("document.getElementById('log-search').focus()")
    page.press(*"WARNING")
    assert page.text("#log-count") == "6 lines found"
    assert page.evaluate("document.querySelectorAll('#log-lines mark').length") == 6
    page.evaluate("document.getElementById('log-file').value = 'rollout/rank_2.out'")
    page.evaluate("document.getElementById('log-file').dispatchEvent(new Event('change'))")
    assert page.text("#log-count") == "1 line found"


@pytest.mark.browser
@pytest.mark.parametrize("window", ["light", "dark", "phone"])
def test_pictures_in_light_and_dark_and_on_a_phone(page: Page, small: str, pictures: Path, window: str) -> None:
    size = {"width": 390, "height": 844, "touch": True} if window == "phone" else {"dark": window == "dark"}
    shown(page, small, **size)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    page.picture(pictures / f"{window}.png")
    page.picture(pictures / f"{window}-whole.png", whole=True)
    places = "(({x, y, width, height}) => ({x, y, width, height, scale: 1}))"
    box = page.evaluate(f"{places}(document.getElementById('waits').getBoundingClientRect())")
    page.picture(pictures / f"{window}-waits.png", clip=box)
    page_colour = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(page_colour)
    for theme in ("light", "dark"):
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert (page.evaluate(page_colour) == before) == (window == "dark")


@pytest.mark.browser
def test_long_names_fit_on_a_phone(page: Page, tmp_path: Path) -> None:
    published = point(EventKind.VERSION, f"published {'m' * 150}", 1, 1.0)
    rings = [ring(f"{'r' * 200}:0", operation(EventKind.SERVE, "s" * 150, 1, 2), published, wall_offset=OFFSET)]
    path = tmp_path / "run.html"
    path.write_text(document_of(dataclasses.replace(made_run(500), rings=rings, missing={"x" * 200: "y" * 200})).html)
    shown(page, path.as_uri(), width=390, height=844, touch=True)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


@pytest.mark.browser
async def test_a_live_page_updates_and_keeps_its_range(page: Page) -> None:
    feed = HandFed()
    feeding: Any = feed
    server = PageServer(document("rlinf run cc6c3c8c", None), feeding)

    async def on_page(function: Any, *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    async with server.serving(0) as address:
        await feed.tell(2000)
        await on_page(shown, page, address)
        assert await on_page(page.text, "#state") == "live"
        few = await on_page(page.text, "#facts")
        await on_page(page.evaluate, "document.querySelector('#phases-body .scroll').focus()")
        await on_page(
            page.evaluate,
            "window.spoken = 0; new MutationObserver(() => { spoken += 1; })"
            ".observe(document.getElementById('state'), { childList: true })",
        )
        await feed.tell(4000)
        await on_page(page.wait_for, f"document.getElementById('facts').innerText !== {json.dumps(few)}")
        assert await on_page(page.evaluate, "document.activeElement.closest('#phases-body') !== null"), "focus stays"
        assert await on_page(page.evaluate, "spoken") == 0, "a screen reader says a state once"
        await on_page(page.evaluate, "document.getElementById('zoom-in').click()")
        zoomed = await on_page(range_of, page)
        await feed.tell(6000, ends=True)
        await on_page(page.wait_for, "document.getElementById('state').textContent === 'ended'")
        assert await on_page(range_of, page) == zoomed
        assert page.complaints == []
