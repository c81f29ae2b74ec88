"""``RestartPolicy`` of a group, and the parser of ``cluster.supervision``, which sets one for each group."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async.configuration.document import Origin, Steps
from rlinf_async.configuration.section import Section, did_you_mean, misplaced
from rlinf_async.errors import ConfigError

RESTARTS: Final = "RLINF_RESTARTS"
"""Environment variable of a worker with the number of earlier starts of its rank."""

_KINDS: Final = ("never", "rank", "group")

_ORDERS: Final = ("group", "rank")

_KEYS: Final = ("restart", "max_restarts", "window", "order")


@dataclass(frozen=True)
class RestartPolicy:
    """The rule for restarting a group's workers after one of them has died.

    Attributes:
        restart: ``"never"``; ``"rank"`` restarts the dead rank; ``"group"`` restarts all ranks of its group.
        max_restarts: maximum number of restarts of a rank (or of the group) within ``window`` seconds; after one more
            death the rank is lost permanently.
        window: seconds over which restarts are counted.
        order: ``"group"`` delays calls to all ranks while one is being restarted; ``"rank"`` delays only calls to that
            rank.

    Raises:
        ConfigError: a value is not allowed.
    """

    restart: str = "never"
    max_restarts: int = 3
    window: float = 600.0
    order: str = "group"

    def __post_init__(self) -> None:
        for name, value, known in (("restart", self.restart, _KINDS), ("order", self.order, _ORDERS)):
            if value not in known:
                hint = did_you_mean(value, known) if isinstance(value, str) else ""
                raise ConfigError(f"{name} is one of {', '.join(map(repr, known))}, got {value!r}{hint}")
        if self.by_rank and self.restart != "rank":
            raise ConfigError(f"order='rank' goes with restart='rank', got restart={self.restart!r}")
        if isinstance(self.max_restarts, bool) or not isinstance(self.max_restarts, int) or self.max_restarts < 0:
            raise ConfigError(f"max_restarts must be a whole number that is not negative, got {self.max_restarts!r}")
        is_number = isinstance(self.window, int | float) and not isinstance(self.window, bool)
        if not is_number or not 0 < self.window <= sys.float_info.max:
            raise ConfigError(f"the window of restarts must be a number of seconds above 0, got {self.window!r}")

    @property
    def restarts(self) -> bool:
        """True if dead ranks are restarted."""
        return self.restart != "never"

    @property
    def restarts_group(self) -> bool:
        """True if a death restarts all ranks of the group."""
        return self.restart == "group"

    @property
    def by_rank(self) -> bool:
        """True if a rank that is being restarted delays only its own calls."""
        return self.order == "rank"

    @classmethod
    def of(
        cls, restart: Any, max_restarts: Any, window: Any, order: Any, configured: RestartPolicy | None
    ) -> RestartPolicy:
        """Return the policy given by the arguments of ``launch()``, where None keeps the configured value.

        Raises:
            ConfigError: the values are not allowed, or contradict each other.
        """
        before = configured or cls()
        if restart is not None and restart != before.restart:
            # The configured order was meant for the restart mode that is now overridden.
            before = dataclasses.replace(before, order="group")
        given = {"restart": restart, "max_restarts": max_restarts, "window": window, "order": order}
        try:
            return dataclasses.replace(before, **{name: each for name, each in given.items() if each is not None})
        except ConfigError as error:
            raise ConfigError(
                f"launch(): {error}; for example launch(..., restart='rank', max_restarts=3, restart_window=600)"
            ) from None


def read_supervision(
    value: Any, steps: Steps, origin: Origin | None, components: Collection[str]
) -> Mapping[str, RestartPolicy]:
    """Read the section, which maps names of groups or components to restart policies.

    Args:
        components: all components of the placement; empty if there is no placement, so that any name is allowed.

    Raises:
        ConfigError: the section is malformed, or names an unknown component.
    """
    if value is None:
        return {}
    example = "supervision must map groups to policies, such as {rollout: {restart: rank, max_restarts: 3}}"
    if not isinstance(value, Mapping):
        raise misplaced(steps, origin, f"{example}, got {value!r}")
    found = {}
    for name, entry in value.items():
        policy_steps = (*steps, str(name))
        if components and name not in components:
            text = f"{name!r} is no component{did_you_mean(str(name), components)}; there are: {', '.join(components)}"
            raise misplaced(policy_steps, origin, text)
        if not isinstance(entry, Mapping):
            raise misplaced(policy_steps, origin, f"{example}, got {entry!r}")
        section = Section(entry, policy_steps, origin, kind="supervision", known=_KEYS, needed=("restart",))
        try:
            given = {key: section.get(key) for key in _KEYS[1:] if section.get(key) is not None}
            found[str(name)] = RestartPolicy(section.get("restart"), **given)
        except ConfigError as error:
            raise section.error(str(error)) from None
    return found
