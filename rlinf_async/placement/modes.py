"""Enums of a job's placement modes (collocated, disaggregated, ...) and of the rollout's weight sync modes."""

from __future__ import annotations

from enum import Enum, auto

from rlinf_async.errors import ConfigError


class PlacementMode(Enum):
    """Ways in which a job's components share accelerators."""

    COLLOCATED = auto()
    """All components take turns on the same accelerators."""
    DISAGGREGATED = auto()
    """Each component has its own accelerators, and all run at the same time."""
    HYBRID = auto()
    """Each component is placed by its own rule."""
    AUTO = auto()
    """Each component starts on its own accelerators; a scheduler moves it while the job runs."""


class RolloutSyncMode(Enum):
    """Ways in which the rollout gets new weights from the actor."""

    COLLOCATED = auto()
    """Weights stay on each accelerator, which runs processes of both actor and rollout."""
    DISAGGREGATED = auto()
    """Weights are sent from the actor's accelerators to others."""
    AUTO = auto()
    """The scheduler's placement determines which of the other modes applies."""


def placement_mode_to_rollout_sync_mode(placement_mode: PlacementMode) -> RolloutSyncMode:
    """Return the sync mode that a placement mode implies.

    Raises:
        ConfigError: the placement mode, such as ``HYBRID``, implies no sync mode.
    """
    try:
        return RolloutSyncMode[placement_mode.name]
    except KeyError:
        raise ConfigError(
            f"placement mode {placement_mode.name} does not say how the rollout gets its weights; "
            f"{', '.join(mode.name for mode in RolloutSyncMode)} do"
        ) from None
