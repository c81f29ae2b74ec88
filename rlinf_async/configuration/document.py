"""Loader of YAML files by OmegaConf, with each value's file and line for errors; conversion to plain values."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.errors import ConfigError

Steps = tuple[str | int, ...]
"""The path from the top of a configuration to a value: keys of mappings, positions in lists."""

_CLUSTER = "cluster"


@dataclass(frozen=True)
class Origin:
    """A configuration's file, and the line of each of its values, counted from 1."""

    path: str
    lines: Mapping[Steps, int] = field(default_factory=dict, repr=False)

    def locate(self, steps: Steps) -> str:
        """Return ``file:line`` of a value, or of the closest enclosing section in the file."""
        for end in range(len(steps), -1, -1):
            if steps[:end] in self.lines:
                return f"{self.path}:{self.lines[steps[:end]]}"
        return self.path

    def under(self, key: str) -> Origin:
        """Return the origin of a document whose section ``key`` is this file's content."""
        return Origin(self.path, {(key, *steps): line for steps, line in self.lines.items()})


class Document(dict[str, Any]):
    """Sections of a configuration file, as loaded by OmegaConf, with their ``origin``."""

    def __init__(self, values: Mapping[str, Any], origin: Origin) -> None:
        super().__init__(values)
        self.origin = origin


def load_document(path: str | Path, overrides: Sequence[str] = ()) -> Document:
    """Read a YAML file; OmegaConf resolves its ``${...}`` interpolations on access.

    Later errors about a value name its line, wherever the framework raises them.

    Args:
        overrides: ``key.of.it=value`` pairs, with values in YAML.

    Raises:
        ConfigError: the file cannot be read or is not a YAML mapping, or an override is malformed.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error}") from error
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        loaded = OmegaConf.create(text) if text.strip() else OmegaConf.create()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigError(
            f"{path}{line}: this is no YAML: {problem}\n"
            "  fix: write `name: value` lines; the configuration has a section 'cluster:'"
        ) from error
    if not OmegaConf.is_dict(loaded):
        raise ConfigError(f"{path}: a configuration is a mapping, with a section 'cluster'")
    try:
        merged = OmegaConf.merge(loaded, OmegaConf.from_dotlist(list(overrides)))
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be overridden by {' '.join(overrides)}: {error}") from error
    origin = _origin(path, tree)
    values = {}
    for key in merged:
        try:
            values[str(key)] = merged[key]  # type: ignore[index]
        except OmegaConfBaseException as error:
            if key == _CLUSTER:
                raise ConfigError(f"{origin.locate((_CLUSTER,))}: {str(error).splitlines()[0]}") from error
            values[str(key)] = None
    return Document(values, origin)


def find_origin(path: str | Path, text: str) -> Origin:
    """Return the origin of YAML text. The caller passes the text because a pipe cannot be read twice."""
    import yaml

    return _origin(path, yaml.compose(text, Loader=yaml.SafeLoader))


def _origin(path: str | Path, tree: Any) -> Origin:
    lines: dict[Steps, int] = {}
    _note_lines(tree, (), lines)
    return Origin(str(path), lines)


def origin_of(config: Any) -> Origin | None:
    """Return the file from which a configuration was loaded, if known."""
    origin = getattr(config, "origin", None) if isinstance(config, Document) else None
    return origin if isinstance(origin, Origin) else None


def plain(value: Any, steps: Steps = (), origin: Origin | None = None) -> Any:
    """Convert a value from OmegaConf to dicts (with unchanged keys), lists and leaves; resolve interpolations.

    A missing mandatory value (``???``) becomes None.

    Raises:
        ConfigError: an interpolation cannot be resolved.
    """
    if isinstance(value, Mapping):
        return {key: plain(_item(value, key, steps, origin), (*steps, key), origin) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(_item(value, number, steps, origin), (*steps, number), origin) for number in range(len(value))]
    return value


def name_steps(steps: Steps) -> str:
    """Return a path as text, such as ``cluster.node_groups[0].label``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _item(container: Any, key: Any, steps: Steps, origin: Origin | None) -> Any:
    if "omegaconf" not in sys.modules:
        return container[key]
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        return container[key]
    except MissingMandatoryValue:
        return None
    except OmegaConfBaseException as error:
        place = name_steps((*steps, key))
        where = f"{origin.locate((*steps, key))}: {place}" if origin else place
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from error


def _note_lines(node: Any, steps: Steps, lines: dict[Steps, int]) -> None:
    """Record the line of each value below a node of PyYAML's tree; a mapping's value gets its key's line."""
    import yaml

    if node is None:
        return
    lines.setdefault(steps, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = (*steps, str(key.value))
            lines[name] = key.start_mark.line + 1
            _note_lines(value, name, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _note_lines(value, (*steps, number), lines)
