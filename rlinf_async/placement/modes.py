"""Enums of a job's placement modes (collocated, disaggregated, ...) and of the rollout's weight sync modes."""

from __future__ import annotations

from enum import Enum, auto

from rlinf_async.errors import ConfigError


class PlacementMode(Enum):
    """Ways in which the components of a job share accelerators."""

    COLLOCATED = auto()
    """All components take turns on the same accelerators."""
    DISAGGREGATED = auto()
    """Each component has accelerators of its own, and all run at the same time."""
    HYBRID = auto()
    """Each component is placed by its own rule."""
    AUTO = auto()
    """Each component starts on accelerators of its own; a scheduler moves it while the job runs."""


class RolloutSyncMode(Enum):
    """Ways in which the rollout gets new weights from the actor."""

    COLLOCATED = auto()
    """Weights stay on each accelerator, where actor and rollout both have a process."""
    DISAGGREGATED = auto()
    """Weights move from the actor's accelerators to others."""
    AUTO = auto()
    """The scheduler's placement decides between the two."""


def placement_mode_to_rollout_sync_mode(placement_mode: PlacementMode) -> RolloutSyncMode:
    """Return the sync mode that a placement mode implies.

    Raises:
        ConfigError: the placement mode implies none, as ``HYBRID`` does not.
    """
    try:
        return RolloutSyncMode[placement_mode.name]
    except KeyError:
        raise ConfigError(
            f"placement mode {placement_mode.name} does not say how the rollout gets its weights; "
            f"{', '.join(mode.name for mode in RolloutSyncMode)} do"
        ) from None
