"""Configurations by a schema: a YAML file, and what the command line overrides of it.

A key that the schema does not have is an error, wherever it stands, with the key that it resembles.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf_async.errors import ConfigError

_PLACEMENT = "cluster.component_placement."


def read_config(schema: type, path: Path, overrides: Sequence[str], components: Iterable[str]) -> DictConfig:
    """``path`` and then ``overrides``, ``key.of.it=value`` with values in YAML, over the schema's defaults.

    Args:
        schema: a dataclass; ``omegaconf.MISSING`` is what has to be given.
        components: what ``cluster.component_placement`` may place.

    Raises:
        ConfigError: unknown, missing or ill-typed keys; names the file or the override.
    """
    cfg = OmegaConf.structured(schema)
    try:
        loaded = OmegaConf.load(path)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    cfg = _merge(cfg, loaded, str(path), components)
    for override in overrides:
        cfg = _merge(cfg, _parse_override(override), f"command line, {override!r}", components)
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError(f"{path}: missing {', '.join(missing)}")
    return cfg


def find_config(name: str, folder: Path) -> Path:
    """A path to a YAML file as it is, or the file of that name in ``folder``.

    Raises:
        ConfigError: there is no such name.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    path = folder / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(f"no configuration {name!r} in {folder}: {_suggest(name, known)}")
    return path


def _parse_override(text: str) -> DictConfig:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"command line, {text!r}: expected key=value, for example runner.seed=1")
    if key.startswith(_PLACEMENT) and not value.startswith("{"):
        # A placement such as 1:0 is text; YAML would read a number to base 60.
        return OmegaConf.create({"cluster": {"component_placement": {key.removeprefix(_PLACEMENT): value}}})
    try:
        return OmegaConf.from_dotlist([text])
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"command line, {text!r}: {error}") from error


def _merge(cfg: DictConfig, addition: Any, source: str, components: Iterable[str]) -> DictConfig:
    if not isinstance(addition, DictConfig):
        raise ConfigError(f"{source}: expected sections such as runner: and data:, found {type(addition).__name__}")
    for prefix, unknown, known in _unknown_keys(_as_dict(cfg), _as_dict(addition), components):
        raise ConfigError(f"{source}: unknown key {prefix}{unknown}: {_suggest(unknown, known, prefix)}")
    try:
        merged = OmegaConf.merge(cfg, addition)
    except OmegaConfBaseException as error:
        key = error.full_key or ", ".join(str(name) for name in addition)
        raise ConfigError(f"{source}: {key}: {str(error).splitlines()[0]}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _as_dict(config: DictConfig) -> dict[Any, Any]:
    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    return values


def _unknown_keys(
    schema: dict[str, Any], given: dict[Any, Any], components: Iterable[str], prefix: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """For each key of ``given`` that ``schema`` lacks: its section, its name, and the names that the section has."""
    for key, value in given.items():
        section = f"{prefix}{key}."
        if section == _PLACEMENT and isinstance(value, dict):
            # A key there may name several components: "actor,rollout".
            named = {part.strip(): None for names in value for part in str(names).split(",")}
            yield from _unknown_keys(dict.fromkeys(components), named, (), section)
        elif key not in schema:
            yield prefix, str(key), list(schema)
        elif isinstance(value, dict) and isinstance(schema[key], dict):
            yield from _unknown_keys(schema[key], value, components, section)


def _suggest(wrong: str, known: Sequence[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f"did you mean {prefix}{close[0]}?" if close else f"there is {', '.join(known)}"
