"""Messages between the groups (problems, responses, rewards), and the channels that carry them.

One training step::

    runner ── ProblemBatch ──► rollout ── Responses ──► reward ── Experience ──► actor
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlinf_async import Channel


@dataclass(frozen=True)
class ProblemBatch:
    """Problems that one rank answers together; ``index`` counts the batches of training step ``step``."""

    step: int
    index: int
    problems: list[str]


@dataclass(frozen=True)
class Responses:
    """A group of responses to each of a batch's problems, the responses to one problem side by side.

    Attributes:
        prompts: ``[problems, prompt length]`` ids, padded on the left.
        tokens: ``[problems * group, response length]`` ids through the end of each, padded on the right.
        log_probabilities: the same shape; of each token as it was sampled, 0 at padding.
        texts: the prompts', and the responses'; None for one that has no end.
        weight_version: of the weights that they were sampled with.
    """

    index: int
    prompts: Tensor
    tokens: Tensor
    log_probabilities: Tensor
    prompt_texts: list[str]
    texts: list[str | None]
    weight_version: int


@dataclass(frozen=True)
class Experience:
    """Responses with ``rewards [problems, group]``."""

    responses: Responses
    rewards: Tensor


@dataclass(frozen=True)
class Queues:
    """The channels of a training step.

    Attributes:
        problems: runner → rollout: whichever rank is free takes the next batch; None says that the step has no more.
        responses: rollout → reward, key: the reward rank.
        experience: reward → actor, key: the actor rank.
    """

    problems: Channel
    responses: Channel
    experience: Channel

    @classmethod
    async def open(cls, step: int) -> Queues:
        """Makes those of a training step."""
        return cls(
            await Channel.create(f"problems {step}"),
            await Channel.create(f"responses {step}", distributed=True),
            await Channel.create(f"experience {step}", distributed=True),
        )

    async def close(self) -> None:
        """Ends all that waits for something in them, and drops what they have."""
        for channel in (self.problems, self.responses, self.experience):
            await channel.aclose(discard=True)
