"""``Response`` and ``Group``: samples of the model with their rewards, as they travel from the engines to the actor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Response:
    """One response to a problem: its tokens, the end included, and facts of each."""

    tokens: list[int]
    log_probs: list[float]  # as each token was sampled
    versions: list[int]  # of the weights that sampled it
    reward: float
    is_truncated: bool  # it reached ``rollout.max_tokens``


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one problem, whose rewards are each other's baseline; ``prompt`` has the problem's tokens."""

    index: int
    prompt: list[int]
    responses: list[Response]

    @property
    def version(self) -> int:
        """Version of the oldest token."""
        return min(version for response in self.responses for version in response.versions)

    @property
    def has_signal(self) -> bool:
        """False if all rewards are alike: the group teaches nothing."""
        return len({response.reward for response in self.responses}) > 1


def describe(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Return figures of the groups that weights of this version learn from; ``staleness`` is a mean over tokens."""
    responses = [response for group in groups for response in group.responses]
    versions = [each for response in responses for each in response.versions]
    return {
        "reward": sum(response.reward for response in responses) / len(responses),
        "groups_without_signal": sum(not group.has_signal for group in groups) / len(groups),
        "truncated": sum(response.is_truncated for response in responses) / len(responses),
        "staleness": version - sum(versions) / len(versions),
    }
