"""Worker group ``actor``: trains the policy with PPO, data-parallel, and publishes its weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from batch_sizes import BatchSizes
from common.checkpoint import load_policy
from common.data_parallel import DataParallel
from common.devices import pick_device
from configuration import Configuration
from pipeline import Layout, Queues
from policy import make_policy
from ppo import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    generalized_advantage_estimation,
    truncated_importance_weights,
    value_loss,
)
from rollouts import TaskShape, join_envs
from seeding import generator_for
from torch import Tensor

from rlinf_async import Worker, idempotent, publish

_METRICS = ("policy_loss", "value_loss", "approximate_kl", "clip_fraction", "grad_norm", "entropy")


class EmbodiedFSDPActor(Worker):
    """Trains the policy with PPO, data-parallel over its ranks.

    The name is RLinf's; nothing is sharded here. These policies have some thousand parameters, so every rank keeps all
    of them, and gradients are averaged.
    """

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._is_ready = False

    async def is_ready(self) -> bool:
        """True once it is initialised; False again after a restart of its process."""
        return self._is_ready

    @idempotent
    def init_worker(
        self, shape: TaskShape, sizes: BatchSizes, layout: Layout, checkpoint: dict[str, Any] | None
    ) -> None:
        """Build policy and optimiser from ``checkpoint``, else from ``actor.model.model_path``, else at random."""
        torch.set_num_threads(self._cfg.actor.threads)
        seed, model, optim = self._cfg.runner.seed, self._cfg.actor.model, self._cfg.actor.optim
        torch.manual_seed(seed)
        self._sizes, self._layout = sizes, layout
        self._device = pick_device(self._cfg.actor.device)
        self._ranks = DataParallel(self._world_size, self._device)
        self._moments_have_batch = False
        self._policy = make_policy(model, shape).to(self._device)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=optim.lr, eps=optim.eps, fused=True)
        if checkpoint is not None:
            self._policy.load_state_dict(checkpoint["policy"])
            # A copy: the optimiser keeps these tensors, but a call's argument does not own its memory.
            self._optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
        elif model.model_path is not None:
            self._policy.load_state_dict(load_policy(model.model_path, self._cfg, ("actor.model.hidden_sizes",)))
        self._ranks.share_weights(self._policy)
        self._weights = publish(self._policy, to="env" if self._cfg.rollout.placement == "with_env" else "rollout")
        self._is_ready = True

    @Worker.timer("sync_model")
    async def sync_model_to_rollout(self) -> int:
        """Send the weights with the moments that normalise observations; on rank 0.

        Returns:
            Their version, as soon as training may change the policy; rollout workers wait for the version that they
            need.
        """
        version: int = await self._weights.send()
        return version

    def training_state(self) -> dict[str, Any]:
        """Return the actor's part of a checkpoint; the same on every rank."""
        return {"policy": _on_cpu(self._policy.state_dict()), "optimizer": _on_cpu(self._optimizer.state_dict())}

    async def recv_rollout_batch(self, queues: Queues) -> list[int]:
        """Receive the experience of this rank's simulators and join it, in the order of the simulators.

        Returns:
            For each part, how many versions its oldest acting weights are behind the learning ones.
        """
        async with queues.experience.take(key=self._rank) as batch:
            joined = join_envs([part for _, part in sorted(batch.items, key=itemgetter(0))])
        self._batch = {name: torch.from_numpy(array).to(self._device) for name, array in vars(joined).items()}
        staleness: list[int] = batch.staleness
        return staleness

    @Worker.timer("compute_advantages_and_returns")
    @torch.no_grad()
    def compute_advantages_and_returns(self) -> None:
        """Compute values, advantages and returns of the batch.

        The first batch fills the moments before any learning. Otherwise, the first update would train a policy that
        sees observations of another scale than all later updates.

        In an asynchronous run, older weights than the learning ones have acted. The clipped ratio compares with the
        learning weights, as they are now, and each action gets an importance weight (:mod:`ppo`).
        """
        algorithm, batch = self._cfg.algorithm, self._batch
        self._moments_have_batch = self._policy.moments.count.item() == 0
        if self._moments_have_batch:
            self._policy.moments.merge(*self._ranks.moments(batch["observations"].flatten(0, 1)))
        self._estimate_advantages()
        batch["weights"] = torch.ones_like(batch["advantages"])
        acted_by = batch["log_probabilities"]
        if self._moments_have_batch or self._cfg.runner.mode == "async":
            batch["log_probabilities"], _ = self._policy.judge(batch["observations"], batch["actions"])
        if self._cfg.runner.mode == "async":
            batch["weights"] = truncated_importance_weights(
                batch["log_probabilities"], acted_by, algorithm.importance_cap
            )

    @torch.no_grad()
    def _estimate_advantages(self) -> None:
        """Compute values, advantages and returns of the batch with the current value function."""
        algorithm, batch = self._cfg.algorithm, self._batch
        batch["values"] = self._policy.state_value(batch["observations"])
        batch["advantages"] = generalized_advantage_estimation(
            rewards=batch["rewards"],
            values=batch["values"],
            next_values=self._policy.state_value(batch["next_observations"]),
            terminated=batch["terminated"],
            ended=batch["terminated"] | batch["truncated"],
            gamma=algorithm.gamma,
            gae_lambda=algorithm.gae_lambda,
        )
        batch["returns"] = batch["advantages"] + batch["values"]

    @Worker.timer("run_training")
    def run_training(self, step: int, lr_factor: float) -> dict[str, float]:
        """Make several passes over the batch in random minibatches, then update the observation moments.

        With ``algorithm.recompute_advantages``, each pass uses advantages and returns of the value function that the
        previous passes produced.

        Except for the first batch, the moments change only afterwards: until then, the policy must see the observations
        as it saw them when it acted.

        Args:
            step: the training step, which seeds the order of the minibatches.
            lr_factor: factor for ``actor.optim.lr``.

        Returns:
            Metrics, averaged over ranks and optimiser steps.
        """
        algorithm, sizes = self._cfg.algorithm, self._sizes
        for group in self._optimizer.param_groups:
            group["lr"] = self._cfg.actor.optim.lr * lr_factor
        names = ("observations", "actions", "log_probabilities", "advantages", "returns", "weights")
        batch = {name: self._batch[name].flatten(0, 1) for name in names}
        generator = generator_for(self._cfg.runner.seed, "minibatches", self._rank, step, torch.device("cpu"))
        explained = explained_variance(self._batch["values"], self._batch["returns"]).item()
        sums = torch.zeros(len(_METRICS), device=self._device)
        updates = 0
        for number in range(algorithm.update_epochs):
            if number and algorithm.recompute_advantages:
                self._estimate_advantages()
                batch |= {name: self._batch[name].flatten(0, 1) for name in ("advantages", "returns")}
            order = torch.randperm(sizes.rollout_per_rank, generator=generator).to(self._device)
            shuffled = {name: tensor[order].split(sizes.minibatch_per_rank) for name, tensor in batch.items()}
            if algorithm.normalize_advantages:
                shuffled["advantages"] = self._normalized(shuffled["advantages"])
            minibatches = [dict(zip(shuffled, parts, strict=True)) for parts in zip(*shuffled.values(), strict=True)]
            epoch = self._ranks.mean(torch.stack([self._update(minibatch) for minibatch in minibatches]).sum(0))
            sums += epoch
            updates += len(minibatches)
            kl = epoch[_METRICS.index("approximate_kl")].item() / len(minibatches)
            if algorithm.target_kl is not None and kl > algorithm.target_kl:
                break
        if not self._moments_have_batch:
            self._policy.moments.merge(*self._ranks.moments(batch["observations"]))
        return dict(zip(_METRICS, (sums / updates).tolist(), strict=True)) | {
            "updates": float(updates),
            "learning_rate": self._cfg.actor.optim.lr * lr_factor,
            "explained_variance": explained,
            "importance_weight": batch["weights"].mean().item(),
            **self._policy.spread(),
        }

    def _normalized(self, minibatches: Sequence[Tensor]) -> list[Tensor]:
        """Normalise advantages to mean 0 and variance 1 in each minibatch over all ranks, with a single collective."""
        advantages = torch.stack(list(minibatches))
        sums = self._ranks.sum(torch.stack([advantages.sum(1), advantages.square().sum(1)]).double())
        count = advantages.shape[1] * self._ranks.world_size
        mean = sums[0] / count
        deviation = (sums[1] / count - mean.square()).clamp_min(0).sqrt()
        return list((advantages - mean.float()[:, None]) / (deviation.float()[:, None] + 1e-8))

    def _update(self, minibatch: dict[str, Tensor]) -> Tensor:
        """Make one optimiser step with this rank's transitions and those of the other ranks.

        Returns:
            This rank's :data:`_METRICS`.
        """
        algorithm = self._cfg.algorithm
        self._optimizer.zero_grad(set_to_none=True)
        means = torch.zeros(4, device=self._device)
        size = len(minibatch["advantages"])
        for start in range(0, size, self._sizes.micro_batch):
            taken = {name: tensor[start : start + self._sizes.micro_batch] for name, tensor in minibatch.items()}
            share = len(taken["advantages"]) / size
            log_probabilities, values = self._policy.judge(taken["observations"], taken["actions"])
            old, clip_ratio = taken["log_probabilities"], algorithm.clip_ratio
            advantages = taken["advantages"] * taken["weights"]
            policy_term = clipped_policy_loss(log_probabilities, old, advantages, clip_ratio)
            value_term = value_loss(values, taken["returns"])
            loss = policy_term + algorithm.value_loss_coefficient * value_term
            loss = loss - algorithm.entropy_bonus * self._policy.entropy(taken["observations"])
            (loss * share).backward()
            with torch.no_grad():
                kl = approximate_kl(log_probabilities, old)
                clipped = clip_fraction(log_probabilities, old, clip_ratio)
                means += share * torch.stack([policy_term, value_term, kl, clipped])
        self._ranks.average_gradients(self._policy.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self._cfg.actor.optim.clip_grad)
        self._optimizer.step()
        with torch.no_grad():
            entropy = self._policy.entropy(minibatch["observations"])
        return torch.cat([means, torch.stack([norm, entropy])])


def _on_cpu(state: Any) -> Any:
    """Return ``state`` with all tensors copied to the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_on_cpu(value) for value in state]
    return state
