"""Finds and loads the YAML file for ``--show-placement``, with the overrides in the script's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rlinf_async.configuration import Document, load_document
from rlinf_async.errors import ConfigError

from ..options import Options

_SUFFIXES = (".yaml", ".yml")
_NAMING = ("--config", "--config-name", "-cn")
_OVERRIDE = re.compile(r"\+{0,2}(cluster\.[A-Za-z0-9_.\[\]]+=.*)", re.DOTALL)


def read_configuration(options: Options) -> Document:
    """The file that ``--show-placement`` names, or the one that the script's words name, with their overrides.

    The words of the script are understood as Hydra's and as those of this project's examples are: a path to a YAML
    file, ``--config NAME`` or ``--config-name NAME`` (in ``config/`` beside the script, or in ``--config-path``),
    and ``cluster.key=value``.

    Raises:
        ConfigError: none is named, or the file cannot be read.
    """
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
        if word.endswith(_SUFFIXES) and Path(word).is_file():
            yield Path(word)


def _settings(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """``--name value`` and ``--name=value``."""
    for word, following in zip(args, (*args, "")[1:], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            yield name, value if equals else following


def _files(folder: Path, name: str) -> Iterator[Path]:
    for path in (Path(name), folder / name, *(folder / f"{name}{suffix}" for suffix in _SUFFIXES)):
        if path.is_file():
            yield path
