"""Reader of the entries of ``component_placement``: components, node groups, rule text, and location for errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.configuration import (
    ClusterConfig,
    Document,
    Origin,
    Section,
    Steps,
    load_document,
    misplaced,
    origin_of,
    plain,
)
from rlinf_async.errors import ConfigError
from rlinf_async.placement.sizes import lookup

_KEYS = ("node_group", "placement")


@dataclass(frozen=True)
class Rule:
    """One entry of ``component_placement``.

    Attributes:
        components: names of the components to which the entry applies.
        text: the rule itself, in the grammar of ``ranges``.
        node_group: labels as written; None for the whole cluster.
        hint: advice appended to errors about the rule.
        steps, origin: path of the entry in its document, and the document's file.
    """

    components: tuple[str, ...]
    text: str
    node_group: str | Sequence[str] | None
    hint: str
    steps: Steps
    origin: Origin | None

    @property
    def name(self) -> str:
        return f"component '{','.join(self.components)}'"

    def error(self, text: str) -> ConfigError:
        """Return an error that begins with the entry's file and line, if known."""
        where = f"{self.origin.locate(self.steps)}: " if self.origin is not None else ""
        return ConfigError(f"{where}{text}")


def load_configuration(config: Any) -> Any:
    """Load a configuration from a path, wrap a ``ClusterConfig``, and return other objects unchanged.

    Raises:
        ConfigError: the file cannot be read, or None was given.
    """
    if config is None:
        raise ConfigError(
            "component placement needs a configuration, got None: give the path of its file, or open the cluster with "
            "Cluster(cluster_cfg=...) and give cluster.config"
        )
    if isinstance(config, ClusterConfig):
        section = {"cluster": {"component_placement": config.component_placement}}
        return section if config.origin is None else Document(section, config.origin)
    if not isinstance(config, str | os.PathLike):
        return config
    document = load_document(os.fspath(config))
    if "cluster" in document or "component_placement" not in document:
        return document
    return Document({"cluster": document}, document.origin.under("cluster"))


def read_rules(config: Any) -> Iterator[Rule]:
    """Yield the entries of ``cluster.component_placement`` in order.

    Args:
        config: a mapping, an OmegaConf ``DictConfig``, or an object with attributes.

    Raises:
        ConfigError: the section is missing, or an entry is malformed.
    """
    origin = origin_of(config)
    steps: Steps = ("cluster", "component_placement")
    found = _get_section(_get_section(config, "cluster", "the configuration"), "component_placement", "'cluster'")
    if not isinstance(found, Mapping):
        raise misplaced(
            (), None, f"component_placement must map components to ranges, such as 'actor: 0-3', got {found!r}"
        )
    for key, value in plain(found, steps, origin).items():
        names = tuple(name.strip() for name in str(key).split(","))
        if not isinstance(key, str):  # YAML reads an unquoted `on` as true
            raise misplaced((*steps, str(key)), origin, f"a component's name is a text, got {key!r}: put it in quotes")
        if not all(names):
            raise ConfigError(f"component_placement: a component's name is empty in {key!r}")
        yield _read_rule(names, value, (*steps, key), origin)


def _get_section(config: Any, name: str, where: str) -> Any:
    section = lookup(config, name)
    if section is None:
        raise ConfigError(
            f"{name} must be provided for component placement: {where} has no section {name!r}; "
            "expected cluster.component_placement"
        )
    return section


def _read_rule(names: tuple[str, ...], value: Any, steps: Steps, origin: Origin | None) -> Rule:
    rule = Rule(names, "", None, "", steps, origin)
    node_group: Any = None
    if isinstance(value, Mapping):
        section = Section(value, steps, origin, kind=rule.name, known=_KEYS, needed=("placement",))
        node_group, value = section.get("node_group"), section.get("placement")
        if not _is_labels(node_group):
            raise section.error(
                f"node_group must be a label, labels with commas between, or a list of labels, got {node_group!r}",
                "node_group",
            )
    try:
        text = _get_text(value)
    except ConfigError as error:
        raise rule.error(f"{rule.name}: {error}") from None
    hint = ""
    if isinstance(value, int) and value >= 60:
        hint = f" (YAML reads an unquoted {value // 60}:{value % 60} as the number {value}: put it in quotes)"
    return Rule(names, text, node_group, hint, steps, origin)


def _is_labels(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(label, str) for label in value)
    return value is None or isinstance(value, str)


def _get_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return ",".join(_get_text(segment) for segment in value)
    raise ConfigError(f"expected a range such as 0-3 or 0-1:0-3, got {value!r}")
