"""The placement chart as SVG: a box per node, a cell per device, a bar per component with its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from rlinf_async.configuration import format_ranks
from rlinf_async.placement import Chart, NodeChart, Spot

from ..report import counted

_CELL: Final = 84
_BAR: Final = 18
_HEAD: Final = 22
_GAP: Final = 12
_MARGIN: Final = 16
_CELLS_PER_ROW: Final = 8
_CHARACTER_WIDTH: Final = 6.2

_COLOURS: Final = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#9c755f", "#edc948")


def draw(chart: Chart, title: str) -> str:
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(chart.components)}
    cell_height = 20 + _BAR * max(1, max((len(spot.ranks) for node in chart.nodes for spot in node.spots), default=1))
    across = min(_CELLS_PER_ROW, max((len(node.spots) for node in chart.nodes), default=1))
    width = across * _CELL + _GAP
    columns = _columns(chart, width, cell_height)
    legend = _legend_rows(chart, columns * (width + _GAP))
    top = _MARGIN + 24 + len(legend) * 22
    bottoms = [top] * columns
    body: list[str] = []
    for node in chart.nodes:
        column = bottoms.index(min(bottoms))
        height = _HEAD + math.ceil(len(node.spots) / across) * cell_height + _GAP
        body += _node(node, _MARGIN + column * (width + _GAP), bottoms[column], width, height, cell_height, colours)
        bottoms[column] += height + _GAP
    total_width = 2 * _MARGIN + columns * (width + _GAP) - _GAP
    total_height = max(bottoms) + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{total_height}" '
            f'viewBox="0 0 {total_width} {total_height}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
            f"<title>{_text(title)}</title>",
            f'<rect width="{total_width}" height="{total_height}" fill="#ffffff"/>',
            f'<text x="{_MARGIN}" y="{_MARGIN + 12}" font-size="15" font-weight="bold">{_text(title)}</text>',
            *_legend(legend, chart, colours),
            *body,
            "</svg>\n",
        ]
    )


def _columns(chart: Chart, width: int, cell_height: int) -> int:
    """Return the number of columns that makes the drawing approximately square."""
    area = sum(width * (_HEAD + cell_height * math.ceil(len(node.spots) / _CELLS_PER_ROW)) for node in chart.nodes)
    return max(1, min(len(chart.nodes), round(math.sqrt(area) / width)))


def _legend_rows(chart: Chart, width: int) -> list[list[tuple[str, int]]]:
    """Return the components with their x positions, in as many rows as the legend needs."""
    rows: list[list[tuple[str, int]]] = [[]] if chart.components else []
    x = _MARGIN
    for name in chart.components:
        needed = int(30 + _CHARACTER_WIDTH * len(_legend_text(name, chart)) + _GAP)
        if rows[-1] and x + needed > _MARGIN + width:
            rows.append([])
            x = _MARGIN
        rows[-1].append((name, x))
        x += needed
    return rows


def _legend_text(name: str, chart: Chart) -> str:
    return f"{name} ({counted(chart.world_sizes[name], 'rank')})"


def _legend(rows: list[list[tuple[str, int]]], chart: Chart, colours: dict[str, str]) -> Iterator[str]:
    for number, row in enumerate(rows):
        y = _MARGIN + 24 + number * 22
        for name, x in row:
            yield f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{colours[name]}"/>'
            yield f'<text x="{x + 20}" y="{y + 11}">{_text(_legend_text(name, chart))}</text>'


def _node(
    node: NodeChart, x: int, y: int, width: int, height: int, cell_height: int, colours: dict[str, str]
) -> Iterator[str]:
    labels = f" [{', '.join(node.labels)}]" if node.labels else ""
    head = f"node {node.rank} {node.name}{labels}"
    yield f"<g><title>{_text(head)}</title>"
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#f4f5f7" stroke="#c4c9d1"/>'
    yield f'<text x="{x + 8}" y="{y + 15}" font-weight="bold">{_text(_fit(head, width - 16))}</text>'
    for number, spot in enumerate(node.spots):
        row, column = divmod(number, _CELLS_PER_ROW)
        yield from _spot(
            node, spot, x + _GAP // 2 + column * _CELL, y + _HEAD + row * cell_height, cell_height - 4, colours
        )
    yield "</g>"


def _spot(node: NodeChart, spot: Spot, x: int, y: int, height: int, colours: dict[str, str]) -> Iterator[str]:
    name = spot.name or "(node)"
    yield (
        f'<rect x="{x + 2}" y="{y}" width="{_CELL - 4}" height="{height}" rx="4" fill="#ffffff" stroke="#dfe2e7"'
        f"{'' if spot.name else _DASHED}/>"
    )
    yield f'<text x="{x + 7}" y="{y + 12}" fill="#5b6270">{_text(_fit(name, _CELL - 12))}</text>'
    for number, (component, ranks) in enumerate(spot.ranks.items()):
        top = y + 17 + number * _BAR
        rank_text = format_ranks(sorted(ranks))
        where = quoteattr(f"{component}:{rank_text}")
        full = (
            f"{component} {'ranks' if len(ranks) > 1 else 'rank'} {rank_text} on node {node.rank} {node.name}, {name}"
        )
        yield f"<g data-ranks={where}><title>{_text(full)}</title>"
        fill = colours[component]
        yield f'<rect x="{x + 5}" y="{top}" width="{_CELL - 10}" height="{_BAR - 3}" rx="3" fill="{fill}"/>'
        label = _fit(f"{component} {rank_text}", _CELL - 16)
        yield f'<text x="{x + 9}" y="{top + 11}" font-size="10" fill="#ffffff">{_text(label)}</text></g>'


_DASHED: Final = ' stroke-dasharray="3 2"'


def _fit(text: str, width: int) -> str:
    letters = int(width / _CHARACTER_WIDTH)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _text(text: str) -> str:
    """Escape text for XML, and replace control characters, which XML forbids."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))
