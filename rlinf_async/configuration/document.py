"""Loader of YAML files by OmegaConf, with each value's file and line for errors; conversion to plain values."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.errors import ConfigError

Steps = tuple[str | int, ...]
"""The path from the top of a configuration to a value: keys of mappings, positions in lists."""


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

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)  # the error of a section whose interpolation could not be resolved
        if isinstance(value, Exception):
            raise value.with_traceback(None)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # dict.get() would not call __getitem__


def load_document(path: str | Path, overrides: Sequence[str] = ()) -> Document:
    """Read a YAML file; OmegaConf resolves its ``${...}`` interpolations on access.

    Later errors about a value name its line, wherever the framework raises them.

    Args:
        overrides: ``key.of.it=value`` pairs, with values in YAML.

    Raises:
        ConfigError: the file cannot be read or is not a YAML mapping, or an override is malformed.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    loaded, origin = read_yaml(path)
    if not OmegaConf.is_dict(loaded):
        raise ConfigError(f"{path}: a configuration is a mapping, with a section 'cluster'")
    try:
        merged = OmegaConf.merge(loaded, OmegaConf.from_dotlist(list(overrides)))
    except Exception as error:
        raise ConfigError(f"{path}: cannot be overridden by {' '.join(overrides)}: {error}") from error
    values: dict[str, Any] = {}
    for key in merged:
        try:
            values[str(key)] = merged[key]  # type: ignore[index]
        except MissingMandatoryValue:
            values[str(key)] = None
        except OmegaConfBaseException as error:
            values[str(key)] = error
    return Document(values, origin)


def read_yaml(path: str | Path) -> tuple[Any, Origin]:
    """Read a YAML file, once because it may be a pipe; return what OmegaConf makes of it, and its lines.

    Raises:
        ConfigError: the file cannot be read, or is not YAML, or has a value that OmegaConf does not take.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    lines: dict[Steps, int] = {}
    origin = Origin(str(path), lines)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a ValueError: the text is not UTF-8, or the path has a zero byte
        raise ConfigError(f"{path}: cannot read the configuration: {error}") from error
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        loaded = OmegaConf.load(io.StringIO(text))
        _note_lines(tree, (), lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise _unreadable(f"{path}{line}", getattr(error, "problem", None) or str(error)) from error
    except OmegaConfBaseException as error:
        _note_lines(tree, (), lines)
        steps = tuple((error.full_key or "").split("."))
        raise _unreadable(
            origin.locate(steps), f"{error.full_key or 'its top'}: {str(error).splitlines()[0]}"
        ) from error
    except Exception as error:  # of int() or float() on a tagged or long number, or a RecursionError
        raise _unreadable(str(path), f"{type(error).__name__}: {error}") from error
    return loaded, origin


def _unreadable(where: str, problem: str) -> ConfigError:
    return ConfigError(
        f"{where}: this cannot be read as YAML: {problem}\n"
        "  fix: write `name: value` lines; the configuration has a section 'cluster:'"
    )


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
        return {key: plain(item(value, key, steps, origin), (*steps, key), origin) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item(value, number, steps, origin), (*steps, number), origin) for number in range(len(value))]
    return value


def name_steps(steps: Steps) -> str:
    """Return a path as text, such as ``cluster.node_groups[0].label``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def item(container: Any, key: Any, steps: Steps, origin: Origin | None) -> Any:
    """Return an entry of the container at ``steps``; None for ``???``. Raises ConfigError like ``plain``."""
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
