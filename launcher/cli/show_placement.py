"""``--show-placement``: plans a placement offline from the hosts' declared devices; shows a table, JSON or SVG."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import (
    ClusterConfig,
    Document,
    NodeGroup,
    format_ranks,
    labelled_groups,
    load_document,
    origin_of,
)
from rlinf_async.errors import ConfigError
from rlinf_async.hardware import load_extension
from rlinf_async.placement import Chart, ComponentPlacement, make_chart

from ..options import Options
from ..remote.host import Host
from ..remote.plan import PlannedNode
from ..report import counted, grid
from .placement_svg import draw

DEFAULT_DRAWING = "placement.svg"

_SUFFIXES = (".yaml", ".yml")
_NAMING = ("--config", "--config-name", "-cn")
_OVERRIDE = re.compile(r"\+{0,2}(cluster\.[A-Za-z0-9_.\[\]]+=.*)", re.DOTALL)


@dataclass(frozen=True)
class Drawing:
    """A planned placement, rendered as text, JSON facts or SVG; ``unknown`` names hosts that declare no devices."""

    source: str
    chart: Chart
    unknown: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        ranks = sum(self.chart.world_sizes.values())
        return f"{self.source}: {counted(ranks, 'rank')} on {counted(len(self.chart.nodes), 'node')}"

    def text(self) -> str:
        columns = ["NODE", "DEVICE", *self.chart.components]
        rows = []
        for node in self.chart.nodes:
            labels = f" [{','.join(node.labels)}]" if node.labels else ""
            head = f"{node.rank} {node.name}{labels}"
            for spot in node.spots:
                cells = (spot.ranks.get(name) for name in self.chart.components)
                rows.append([head, spot.name or "-", *(format_ranks(sorted(each)) if each else "." for each in cells)])
                head = ""
        out = [self.title, "", grid(columns, rows)]
        if self.unknown:
            out += ["", f"not known without asking: the devices of {', '.join(self.unknown)}"]
            out += ["  say them with slots=, gpus= or fake_gpus= in the hosts file, or with --fake-gpus"]
        return "\n".join(out)

    def facts(self) -> dict[str, Any]:
        return {
            "event": "placement",
            "source": self.source,
            "components": dict(self.chart.world_sizes),
            "nodes": [
                {
                    "rank": node.rank,
                    "name": node.name,
                    "groups": list(node.labels),
                    "devices": [
                        {"name": spot.name, "ranks": {name: sorted(each) for name, each in spot.ranks.items()}}
                        for spot in node.spots
                    ],
                }
                for node in self.chart.nodes
            ],
        }

    def svg(self) -> str:
        return draw(self.chart, self.title)


@dataclass(frozen=True)
class _Shape:
    nodes: tuple[NodeInfo, ...]
    node_groups: tuple[NodeGroup, ...]


def picture(nodes: Sequence[PlannedNode], options: Options, environ: Mapping[str, str]) -> Drawing:
    """Plan a placement without contacting any host.  Raises ConfigError, for example if the nodes lack resources."""
    load_extension(environ)
    document = _read_configuration(options)
    config = ClusterConfig.from_dict_cfg(document)
    visible = [node for node in nodes if not node.hidden]
    if len(visible) < config.num_nodes:
        raise ConfigError(
            f"num_nodes: {config.num_nodes}, but there are {len(visible)} hosts: "
            f"{', '.join(node.name for node in visible)}\n  fix: name more hosts, or --local-nodes {config.num_nodes}"
        )
    visible = visible[: config.num_nodes or None]
    infos = tuple(_describe(node) for node in visible)
    groups = config.node_groups_for(infos)
    shape = _Shape(infos, (*groups, *labelled_groups(infos, {group.label for group in groups})))
    placement = ComponentPlacement(document, shape)
    placed = {name: placement.get_strategy(name).get_placement(shape) for name in placement.components}
    origin = origin_of(document)
    return Drawing(
        source=origin.path if origin is not None else "",
        chart=make_chart(shape, placed),
        unknown=tuple(node.name for node in visible if _devices(node.host) is None),
    )


def save(drawn: Drawing, path: Path) -> None:
    """Write the drawing.  Raises ConfigError if the file cannot be written."""
    try:
        path.write_text(drawn.svg(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the drawing: {error.strerror or error}") from error


def _describe(node: PlannedNode) -> NodeInfo:
    devices = _devices(node.host) or ()
    return NodeInfo(
        node_rank=node.rank,
        name=node.name,
        node_ip=node.host.address or "",
        num_cpus=1,
        accelerators=devices,
        accelerator_type="NV_GPU" if devices else "NO_ACCEL",
        node_labels=node.host.labels,
    )


def _devices(host: Host) -> tuple[str, ...] | None:
    if host.fake_gpus is not None:
        return tuple(map(str, range(host.fake_gpus)))
    if host.gpus is not None:
        return host.gpus
    return None if host.slots is None else tuple(map(str, range(host.slots)))


def _read_configuration(options: Options) -> Document:
    """Return the file named by ``--show-placement`` or the script's arguments, with the arguments' overrides."""
    # The script's arguments are read as Hydra and this project's examples read them: a path to a YAML file, --config
    # NAME or --config-name NAME (in config/ beside the script, or in --config-path), and cluster.key=value.
    named = options.show_placement or None
    path = Path(named) if named else next(_candidates(options), None)
    if path is None:
        raise ConfigError(
            "--show-placement: no configuration is named\n"
            "  fix: write --show-placement FILE.yaml, or let the script's words name it: train.py --config FILE.yaml"
        )
    overrides = [match[1] for word in options.args if (match := _OVERRIDE.fullmatch(word))]
    return load_document(path, overrides)


def _candidates(options: Options) -> Iterator[Path]:
    words = dict(_settings(options.args))
    script = Path(options.script) if options.script is not None and not options.module else Path()
    folder = script.parent / words.get("--config-path", words.get("-cp", "config"))
    for name in _NAMING:
        if name in words:
            yield from _files(folder, words[name])
    for word in options.args:
        if word.endswith(_SUFFIXES) and os.path.isfile(word):
            yield Path(word)


def _settings(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each ``--name value`` and ``--name=value``."""
    for word, following in zip(args, (*args, "")[1:], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            yield name, value if equals else following


def _files(folder: Path, name: str) -> Iterator[Path]:
    for path in (Path(name), folder / name, *(folder / f"{name}{suffix}" for suffix in _SUFFIXES)):
        if os.path.isfile(path):
            yield path
