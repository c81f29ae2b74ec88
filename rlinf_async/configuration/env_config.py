"""Parser of ``env_configs``: a node group's Python interpreters and environment variables, by node rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_async._core.own_start import OWN
from rlinf_async.configuration.document import Origin, Steps
from rlinf_async.configuration.ranks import format_ranks, parse_rank_config
from rlinf_async.configuration.section import Section, misplaced
from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class NodeEnvConfig:
    """The Python interpreter and environment variables of workers on some of a group's nodes.

    Attributes:
        node_ranks: the nodes' ranks in the cluster, ascending.
        env_vars: maps the name of each variable to its value.
        python_interpreter_path: the interpreter; None means the interpreter that the node itself uses.
    """

    node_ranks: tuple[int, ...]
    env_vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    python_interpreter_path: str | None = None


def read_env_configs(
    entries: Sequence[Any], steps: Steps, origin: Origin | None, group_ranks: Sequence[int]
) -> tuple[NodeEnvConfig, ...]:
    """Read the list ``env_configs`` of a group whose nodes are ``group_ranks``.

    A variable may have different values on different nodes.

    Raises:
        ConfigError: an entry is malformed or names a node outside the group, or two entries name the same node.
    """
    configs: list[NodeEnvConfig] = []
    taken: dict[int, int] = {}
    for number, entry in enumerate(entries):
        entry_steps = (*steps, number)
        if not isinstance(entry, Mapping):
            raise misplaced(entry_steps, origin, f"Each node env config must be a dictionary, got {entry!r}")
        section = Section(
            entry,
            entry_steps,
            origin,
            kind="env config",
            known=("node_ranks", "env_vars", "python_interpreter_path"),
            needed=("node_ranks",),
        )
        ranks = read_node_ranks(section, None)
        outside = [rank for rank in ranks if rank not in group_ranks]
        if outside:
            raise section.error(
                f"the node_ranks {format_ranks(outside)} of an env config must be within node_ranks of the group, "
                f"{format_ranks(group_ranks)}",
                "node_ranks",
            )
        for rank in ranks:
            if rank in taken:
                raise section.error(
                    f"node {rank} is in env_configs[{taken[rank]}] already: the node_ranks of two env configs of a "
                    "group must not overlap",
                    "node_ranks",
                )
            taken[rank] = number
        configs.append(NodeEnvConfig(ranks, _read_variables(section), section.text("python_interpreter_path")))
    return tuple(configs)


def read_node_ranks(section: Section, available: Sequence[int] | None) -> tuple[int, ...]:
    """Return a section's ``node_ranks`` after checking that each is available. Raises ConfigError."""
    try:
        return tuple(parse_rank_config(section.get("node_ranks"), available, "node"))
    except ConfigError as error:
        raise section.error(f"Error parsing node_ranks: {error}", "node_ranks") from None


def _read_variables(section: Section) -> dict[str, str]:
    variables: dict[str, str] = {}
    if isinstance(section.get("env_vars"), Mapping):
        raise section.error("env_vars must be a list of one-key mappings, each such as '- NAME: value'", "env_vars")
    for number, entry in enumerate(section.entries("env_vars")):
        if not isinstance(entry, Mapping):
            raise section.error(
                f"Each node env_var must be a dict, such as NAME: value, got {entry!r}", "env_vars", number
            )
        if len(entry) != 1:
            raise section.error(
                f"Each node env_var must have exactly one key-value pair, got {dict(entry)!r}: "
                "write each variable as a list entry of its own",
                "env_vars",
                number,
            )
        ((name, value),) = entry.items()
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise section.error(f"{name!r} cannot name a variable", "env_vars", number)
        if name in OWN:
            raise section.error(f"{name} is set by the framework for each worker: leave it out", "env_vars", number)
        if name in variables:
            raise section.error(f"the variable {name} is set twice for the same nodes", "env_vars", number)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
            raise section.error(
                f"the value of {name} is {value!r}, which is no text: put it in quotes", "env_vars", number
            )
        variables[name] = str(value)
    return variables
