"""Enums of a job's placement modes (collocated, disaggregated, ...) and of the rollout's weight sync modes."""

from __future__ import annotations

from enum import Enum, auto

from rlinf_async.errors import ConfigError


class PlacementMode(Enum):
    """Ways in which the components of a job share accelerators."""

    COLLOCATED = auto()
    """All on the same ones, in turn."""
    DISAGGREGATED = auto()
    """Each on its own, all at once."""
    HYBRID = auto()
    """Each as its rule says."""
    AUTO = auto()
    """Each on its own to begin with; a scheduler moves them while the job runs."""


class RolloutSyncMode(Enum):
    """Ways in which the rollout gets new weights from the actor."""

    COLLOCATED = auto()
    """Within each accelerator: both have a process there."""
    DISAGGREGATED = auto()
    """From the actor's accelerators to others."""
    AUTO = auto()
    """Either, as the scheduler has placed them."""


def placement_mode_to_rollout_sync_mode(placement_mode: PlacementMode) -> RolloutSyncMode:
    """The rollout's way of a mode.

    Raises:
        ConfigError: the mode does not decide it, as ``HYBRID`` does not.
    """
    try:
        return RolloutSyncMode[placement_mode.name]
    except KeyError:
        raise ConfigError(
            f"placement mode {placement_mode.name} does not say how the rollout gets its weights; "
            f"{', '.join(mode.name for mode in RolloutSyncMode)} do"
        ) from None
