"""Reader of a job's own YAML file and command-line overrides, checked against a dataclass schema.

Every unknown key is an error that suggests the most similar known key::

    @dataclass
    class Runner:
        max_epochs: int = MISSING
        seed: int = 0

    @dataclass
    class Configuration:
        runner: Runner = field(default_factory=Runner)

    read_configuration(Configuration, find_configuration("small", Path("config")), ["runner.seed=7"])
    # config/small.yaml:2: unknown key runner.max_epoch: did you mean runner.max_epochs?
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.configuration.document import Origin, read_yaml
from rlinf_async.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PLACEMENT: Final = "cluster.component_placement."

Claim = tuple[str, bool, str]
"""A key, whether its value is valid, and the rule: ``("algorithm.gamma", gamma <= 1, "must be at most 1")``."""


def find_configuration(name: str, folder: Path) -> Path:
    """Return a path to a YAML file unchanged, but look up any other name in ``folder``.

    Raises:
        ConfigError: there is no such file; the message suggests a similar name.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    path = folder / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(f"no configuration {name!r} in {folder}: {_suggest(name, known)}")
    return path


def read_configuration(
    schema: type, path: Path, overrides: Sequence[str] = (), components: Collection[str] = ()
) -> DictConfig:
    """Load ``path`` over the schema's defaults, then apply ``overrides``.

    Args:
        schema: a dataclass of dataclasses, as OmegaConf accepts them; a field with ``omegaconf.MISSING`` is mandatory.
        overrides: ``key.of.it=value`` pairs, with values in YAML. A placement is always text, even if YAML would parse
            it as a base-60 number (``1:0``).
        components: components that ``cluster.component_placement`` may place, alone or joined (``actor,rollout``);
            empty allows any.

    Raises:
        ConfigError: the file cannot be read or is not a YAML mapping, an override is malformed, or a key is unknown,
            missing or of the wrong type. The message names the key, and the file and line or the override.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    cfg: DictConfig = OmegaConf.structured(schema)
    loaded, origin = read_yaml(path)
    cfg = _merge(cfg, loaded, str(path), components, origin)
    for override in overrides:
        cfg = _merge(cfg, _parse_override(override), f"command line, {override!r}", components)
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
    except OmegaConfBaseException as error:  # an interpolation
        raise ConfigError(f"{path}: {error.full_key}: {str(error).splitlines()[0]}") from error
    if missing:
        raise ConfigError(f"{path}: missing {', '.join(missing)}")
    return cfg


def check_values(cfg: DictConfig, claims: Iterable[Claim], path: Path, overrides: Sequence[str] = ()) -> None:
    """Check claims about values that types cannot express.

    Raises:
        ConfigError: a claim does not hold; the message names the key, its value and its possible sources.
    """
    from omegaconf import OmegaConf

    source = f"{path} and command line" if overrides else str(path)
    for key, holds, must in claims:
        if not holds:
            raise ConfigError(f"{source}: {key} {must}, not {OmegaConf.select(cfg, key)}")


def _parse_override(text: str) -> DictConfig:
    from omegaconf import OmegaConf

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"command line, {text!r}: expected key=value, for example runner.seed=1")
    try:
        if key.startswith(_PLACEMENT) and not value.startswith("{"):
            return OmegaConf.create({"cluster": {"component_placement": {key.removeprefix(_PLACEMENT): value}}})
        return OmegaConf.from_dotlist([text])
    except Exception as error:
        raise ConfigError(f"command line, {text!r}: {error}") from error


def _merge(
    cfg: DictConfig, addition: Any, source: str, components: Collection[str], origin: Origin | None = None
) -> DictConfig:
    """Check the keys of ``addition``, read from the file or override ``source``, and merge it into ``cfg``."""
    from omegaconf import DictConfig, OmegaConf

    if not isinstance(addition, DictConfig):
        sections = " and ".join(f"{key}:" for key in list(cfg)[:2])
        raise ConfigError(f"{source}: expected sections such as {sections}, found {type(addition).__name__}")
    given = OmegaConf.to_container(addition, resolve=False)
    assert isinstance(given, dict)
    for prefix, unknown, known in _unknown_keys(cfg, given, components):
        key = f"{prefix}{unknown}"
        raise ConfigError(f"{_locate(source, origin, key)}: unknown key {key}: {_suggest(unknown, known, prefix)}")
    try:
        merged = OmegaConf.merge(cfg, addition)
    except Exception as error:  # also a TypeError, for a mapping where a list belongs
        key = getattr(error, "full_key", None) or ", ".join(str(name) for name in addition)
        raise ConfigError(f"{_locate(source, origin, key)}: {key}: {str(error).splitlines()[0]}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _locate(source: str, origin: Origin | None, key: str) -> str:
    return source if origin is None else origin.locate(tuple(key.split(".")))


def _unknown_keys(
    section: DictConfig, given: dict[Any, Any], components: Collection[str], prefix: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the section, the name, and the section's known names for each key that the schema lacks."""
    from omegaconf import OmegaConf

    known = [str(key) for key in section]
    for key, value in given.items():
        inside = f"{prefix}{key}."
        if inside == _PLACEMENT and components and isinstance(value, dict):
            named = [part.strip() for names in value for part in str(names).split(",")]
            yield from ((inside, name, list(components)) for name in named if name not in components)
        elif key not in known:
            yield prefix, str(key), known
        elif isinstance(value, dict) and is_dataclass(OmegaConf.get_type(section, key)):
            yield from _unknown_keys(section[key], value, components, inside)


def _suggest(wrong: str, known: Sequence[str], prefix: str = "") -> str:
    close = get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f"did you mean {prefix}{close[0]}?" if close else f"there is {', '.join(known)}"
