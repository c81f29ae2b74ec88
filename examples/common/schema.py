"""Base schema of the examples' configurations: shared sections and checks, reader with command-line overrides."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from rlinf_async.configuration import Claim, check_values, find_configuration, read_configuration
from rlinf_async.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
LR_SCHEDULES = ("constant", "linear")
_RESTART_ARGUMENTS = {"restart": "restart", "max_restarts": "max_restarts", "restart_window": "window"}


@dataclass(frozen=True)
class Logger:
    log_path: str = MISSING  # TensorBoard files, models and the evaluation go here


@dataclass(frozen=True)
class RolloutModel:
    model_path: str | None = None


@dataclass(frozen=True)
class Schema:
    """Sections and checks of an example's configuration.

    Attributes:
        sections: dataclass of the configuration.
        folder: folder of the configurations that can be named without a path.
        components: components that ``cluster.component_placement`` places.
        claims: checks that types cannot express, for keys of this example only.
        must_place_all: True if ``cluster.component_placement`` has to name all of ``components``.
    """

    sections: type
    folder: Path
    components: tuple[str, ...]
    claims: Callable[[DictConfig], list[Claim]]
    must_place_all: bool = True

    def load(self, name: str, overrides: Sequence[str] = ()) -> Any:
        """Read and check a configuration, an instance of ``sections``.

        Args:
            name: name of a file in ``folder``, or path to a YAML file.
            overrides: ``key.of.it=value`` pairs, with values in YAML.

        Raises:
            ConfigError: a key is unknown, missing or of the wrong type, or a value is out of range; the message names
                the file or the override.
        """
        path = find_configuration(name, self.folder)
        cfg = read_configuration(self.sections, path, overrides, self.components)
        check_values(cfg, [*self._common_claims(cfg), *self.claims(cfg)], path, overrides)
        return OmegaConf.to_object(cfg)

    def parse(self, arguments: Sequence[str], about: str | None, default: str) -> Any:
        """Load the configuration of a command line: ``--config NAME|PATH`` and overrides."""
        parser = argparse.ArgumentParser(
            description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        parser.add_argument("--config", default=default, metavar="NAME|PATH", help="default: %(default)s")
        parser.add_argument("overrides", nargs="*", metavar="key=value")
        options = parser.parse_intermixed_args(arguments)
        return self.load(options.config, options.overrides)

    def _common_claims(self, cfg: DictConfig) -> list[Claim]:
        sizes = ("cluster.num_nodes", "runner.max_epochs", "actor.global_batch_size")
        is_placed = placed_components(cfg) == set(self.components) or not self.must_place_all
        has_model = cfg.rollout.model.model_path is not None
        return [
            *at_least_one(cfg, *sizes),
            *not_negative(cfg, "runner.seed"),
            *above_zero(cfg, "actor.optim.lr", "algorithm.clip_ratio"),
            *chosen(cfg, {"actor.device": DEVICES, "actor.optim.lr_schedule": LR_SCHEDULES}),
            ("cluster.component_placement", is_placed, f"must place {', '.join(self.components)}"),
            ("runner.only_eval", has_model or not cfg.runner.only_eval, "needs rollout.model.model_path"),
        ]


def placed_components(cfg: Any) -> set[str]:
    """Return the component names in ``cluster.component_placement``; a key may join several (``actor,rollout``)."""
    return {part.strip() for names in cfg.cluster.component_placement for part in str(names).split(",")}


def supervised(cfg: DictConfig, *, rank: Sequence[str], group: Sequence[str]) -> list[Claim]:
    """Return claims on ``cluster.supervision``: components may restart only rank by rank, or only as a group."""
    kinds = {**dict.fromkeys(rank, ("never", "rank", "group")), **dict.fromkeys(group, ("never", "group"))}
    names, entries = ", ".join(kinds), cfg.cluster.supervision
    return [
        *((f"cluster.supervision.{name}", name in kinds, f"must be one of {names}") for name in entries),
        *(
            (f"cluster.supervision.{name}", _restart_of(entry) in kinds.get(name, ()), f"needs restart: {wanted}")
            for name, entry in entries.items()
            for wanted in [" or ".join(kinds.get(name, ()))]
            if name in kinds
        ),
    ]


def _restart_of(entry: Any) -> Any:
    return entry.get("restart") if isinstance(entry, Mapping | DictConfig) else None


def restart_arguments(supervision: Mapping[str, Any], component: str) -> dict[str, Any]:
    """Return the arguments of ``launch`` for a component's restarts.

    Raises:
        ConfigError: a key is unknown.
    """
    entry = dict(supervision.get(component, {}))
    found = {name: entry.pop(key, None) for name, key in _RESTART_ARGUMENTS.items()}
    if entry:
        known = ", ".join(_RESTART_ARGUMENTS.values())
        raise ConfigError(f"cluster.supervision.{component}: {', '.join(entry)} is unknown; it has {known}")
    return found


def at_least_one(cfg: DictConfig, *keys: str) -> list[Claim]:
    return [(key, OmegaConf.select(cfg, key) >= 1, "must be at least 1") for key in keys]


def not_negative(cfg: DictConfig, *keys: str) -> list[Claim]:
    return [(key, OmegaConf.select(cfg, key) >= 0, "must not be negative") for key in keys]


def above_zero(cfg: DictConfig, *keys: str) -> list[Claim]:
    return [(key, OmegaConf.select(cfg, key) > 0, "must be above 0") for key in keys]


def chosen(cfg: DictConfig, choices: Mapping[str, Sequence[str]]) -> list[Claim]:
    return [
        (key, OmegaConf.select(cfg, key) in known, f"must be {', '.join(known[:-1])} or {known[-1]}")
        for key, known in choices.items()
    ]
