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

    The name is RLinf's; nothing is sharded here.  These policies have some thousand parameters: every rank keeps all of
    them, and gradients are averaged.
    """

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Whether it was initialised: not any more, once its process was started again."""
        return self._is_ready

    @idempotent
    def init_worker(
        self, shape: TaskShape, sizes: BatchSizes, layout: Layout, checkpoint: dict[str, Any] | None
    ) -> None:
        """Builds policy and optimiser: from ``checkpoint``, else ``actor.model.model_path``, else at random."""
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
            # The optimiser keeps the tensors that it is given, and those of a call's argument are not ours.
            self._optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
        elif model.model_path is not None:
            self._policy.load_state_dict(load_policy(model.model_path, self._cfg, ("actor.model.hidden_sizes",)))
        self._ranks.share_weights(self._policy)
        self._weights = publish(self._policy, to="env" if self._cfg.rollout.placement == "with_env" else "rollout")
        self._is_ready = True

    @Worker.timer("sync_model")
    async def sync_model_to_rollout(self) -> int:
        """Sends the weights, with the moments that observations are normalised by; on rank 0.

        Returns:
            Their version, as soon as the policy may be trained on: who infers waits for the version that it needs.
        """
        version: int = await self._weights.send()
        return version

    def training_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the actor; the same on every rank."""
        return {"policy": _on_cpu(self._policy.state_dict()), "optimizer": _on_cpu(self._optimizer.state_dict())}

    async def recv_rollout_batch(self, queues: Queues) -> list[int]:
        """Takes this rank's simulators' share of the experience, side by side in the order of the simulators.

        Returns:
            For each part, by how many versions the oldest weights that acted were behind those that learn.
        """
        async with queues.experience.take(key=self._rank) as batch:
            joined = join_envs([part for _, part in sorted(batch.items, key=itemgetter(0))])
        self._batch = {name: torch.from_numpy(array).to(self._device) for name, array in vars(joined).items()}
        staleness: list[int] = batch.staleness
        return staleness

    @Worker.timer("compute_advantages_and_returns")
    @torch.no_grad()
    def compute_advantages_and_returns(self) -> None:
        """Values, advantages and returns of the batch.

        The first observations were seen as they are.  They fill the moments before anything is learnt from them, or
        the first update would be of a policy that sees another world than all later ones.

        In an asynchronous run the weights that learn are not those that acted: the ratio that is clipped is the one to
        the former, as they are now, and each action has an importance weight (:mod:`ppo`).
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
        """Values, advantages and returns of the batch, by the value function as it is now."""
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
        """Several passes over the batch in random minibatches, then the moments of its observations.

        With ``algorithm.recompute_advantages`` each pass learns from advantages and returns by the value function that
        the passes before have left.

        The moments change only afterwards, but for the first batch's: until then, the policy must see what it saw
        when it acted.

        Args:
            step: the training step: it seeds the order of the minibatches.
            lr_factor: multiplies ``actor.optim.lr``.

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
        """Advantages, with mean 0 and variance 1 in each minibatch over all ranks: one collective for all of them."""
        advantages = torch.stack(list(minibatches))
        sums = self._ranks.sum(torch.stack([advantages.sum(1), advantages.square().sum(1)]).double())
        count = advantages.shape[1] * self._ranks.world_size
        mean = sums[0] / count
        deviation = (sums[1] / count - mean.square()).clamp_min(0).sqrt()
        return list((advantages - mean.float()[:, None]) / (deviation.float()[:, None] + 1e-8))

    def _update(self, minibatch: dict[str, Tensor]) -> Tensor:
        """One optimiser step on this rank's transitions and the other ranks' own.

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
    """``state`` with every tensor in it on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_on_cpu(value) for value in state]
    return state
