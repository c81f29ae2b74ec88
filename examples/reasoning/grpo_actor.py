"""Worker group ``actor``: trains the model with GRPO, data-parallel, after a supervised warm start."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from batches import Batches
from common.data_parallel import DataParallel
from common.devices import pick_device
from common.generators import torch_generator
from experience import Experience, Queues
from grpo import (
    LOSS_AGGREGATIONS,
    clipped_policy_loss,
    clipped_tokens,
    group_relative_advantages,
    has_signal,
    kl_penalty,
    token_mean,
    truncated_importance_weights,
)
from language_model import make_policy, response_log_probabilities, save_model
from problem_sets import ProblemSets
from reasoning_config import Configuration, clip_range
from solver import Solver
from task import make_task
from tokenizer import CharacterTokenizer
from torch import Tensor
from torch.nn.functional import pad
from warm_start import WarmStartReport, warm_start

from rlinf_async import Worker, idempotent, publish

_METRICS = ("policy_loss", "kl_to_sampler", "kl_to_reference", "clip_fraction", "grad_norm")


class GRPOActor(Worker):
    """Trains the model with GRPO, data-parallel over its ranks: each has all of it, and gradients are averaged."""

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Whether it was initialised: not any more, once its process was started again."""
        return self._is_ready

    @idempotent
    def init_worker(self, sizes: Batches) -> None:
        """Builds the model, the same on every rank, from ``actor.model.model_path`` where that is given."""
        torch.set_num_threads(1)
        cfg = self._cfg
        self._sizes = sizes
        self._device = pick_device(cfg.actor.device)
        self._ranks = DataParallel(self._world_size, self._device)
        self._task = make_task(cfg.data)
        self._clip_range = clip_range(cfg)
        self._aggregate = LOSS_AGGREGATIONS[cfg.algorithm.loss_agg_func]
        self._tokenizer = CharacterTokenizer.load(cfg.actor.tokenizer.tokenizer_model, self._task.characters)
        self._model = make_policy(cfg.actor.model.model_path, cfg, self._tokenizer).to(self._device)
        self._weights = publish(self._model, to="rollout")
        self._is_ready = True

    @Worker.timer("warm_start")
    def warm_start(self, sets: ProblemSets) -> WarmStartReport:
        """Imitates demonstrations until enough responses resemble them.

        Raises:
            WarmStartFailed: they never were.
        """
        solver = Solver(self._model, self._tokenizer, self._task.longest_response + 1, self._device)
        return warm_start(solver, self._task, sets, self._cfg, self._ranks)

    def begin_training(self, checkpoint: dict[str, Any] | None) -> None:
        """Makes the optimiser; with ``algorithm.kl_beta``, the model as it is now becomes the reference.

        From a checkpoint, the weights are those that sampled the responses to learn from next: :meth:`catch_up`.
        """
        optim = self._cfg.actor.optim
        self._version = 1
        self._checkpoint, self._sampler = checkpoint, None
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=optim.lr, betas=(0.9, optim.beta2), weight_decay=optim.weight_decay
        )
        self._reference = copy.deepcopy(self._model).requires_grad_(False) if self._cfg.algorithm.kl_beta else None
        if checkpoint is not None:
            if self._reference is not None:
                self._reference.load_state_dict(checkpoint["reference"])
            # The optimiser keeps the tensors that it is given, and those of a call's argument are not ours.
            self._optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
            self._model.load_state_dict(checkpoint["sampler"])

    def catch_up(self) -> None:
        """Goes on to the checkpoint's newest weights, once the responses are sampled that older ones are due to."""
        assert self._checkpoint is not None
        if self._cfg.rollout.max_staleness:
            self._model.load_state_dict(self._checkpoint["policy"])
            self._version += 1
        self._checkpoint = None

    def training_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the actor; the same on every rank.

        ``sampler`` has the weights that sample the responses to learn from next.  With a staleness of 1 these responses
        exist already, by weights from before the training step that has just ended; a resumed run samples them anew.
        """
        policy = _on_cpu(self._model.state_dict())
        state = {"policy": policy, "sampler": self._sampler or policy, "optimizer": self._optimizer.state_dict()}
        return state | ({"reference": self._reference.state_dict()} if self._reference is not None else {})

    def save(self, folder: Path) -> None:
        """Writes model and tokenizer, for ``model_path`` and ``tokenizer_model``."""
        save_model(self._model, folder)
        self._tokenizer.save(folder)

    @Worker.timer("sync_model")
    async def sync_model_to_rollout(self) -> int:
        """Sends the weights to the rollout group, and returns when they may change again: their version.

        Version 1 is what training begins with, and every training step makes the next; none is sent twice.
        """
        if self._weights.version < self._version:
            await self._weights.send(version=self._version)
        return self._version

    async def recv_rollout_batch(self, queues: Queues, batches: int) -> None:
        """Takes this rank's share of a training step's ``batches`` batches of experience.

        Where these are more than a step learns from, groups with a signal come first.
        """
        mine = range(self._rank, batches, self._world_size)
        parts: list[Experience] = [await queues.experience.get(key=self._rank) for _ in mine]
        # In an order that does not depend on who was first.
        parts.sort(key=lambda part: part.responses.index)
        joined = _join(parts, self._tokenizer.pad_id)
        self._groups_without_signal = 1.0 - has_signal(joined["rewards"]).float().mean().item()
        chosen = _choose(joined, self._sizes.responses // self._world_size)
        self._batch = {name: tensor.to(self._device) for name, tensor in chosen.items()}
        versions = [part.responses.weight_version for part in parts]
        self._staleness = self._version - sum(versions) / len(versions)

    @Worker.timer("compute_advantages")
    @torch.no_grad()
    def compute_advantages(self) -> None:
        """Advantages within each group; log probabilities by reference and trainer where needed."""
        batch, algorithm = self._batch, self._cfg.algorithm
        batch["entropy"] = -batch["log_probabilities"]
        advantages = group_relative_advantages(batch["rewards"], divide_by_std=algorithm.norm_adv_by_std_in_grpo)
        batch["advantages"] = advantages.flatten()[:, None]
        if self._reference is not None:
            batch["reference_log_probabilities"] = self._judge(self._reference)
        if algorithm.importance_sampling_fix:
            mask, sampled = batch["tokens"] != self._tokenizer.pad_id, batch["log_probabilities"]
            proximal = self._judge(self._model)
            weights = truncated_importance_weights(proximal, sampled, mask, algorithm.importance_sampling_clip)
            batch["advantages"] = batch["advantages"] * weights
            batch["log_probabilities"] = proximal

    @Worker.timer("run_training")
    def run_training(self, step: int, lr_factor: float) -> dict[str, float]:
        """One pass over the experience in random minibatches, an optimiser step for each.

        Args:
            step: the training step: it seeds the order.
            lr_factor: multiplies ``actor.optim.lr``.

        Returns:
            Metrics, averaged over ranks and optimiser steps.  ``entropy`` is that of a token, estimated from those that
            were sampled; ``groups_without_signal`` counts all that were sampled; ``staleness`` is the number of
            training steps that the weights were behind which had sampled the responses.
        """
        runner = self._cfg.runner
        if self._cfg.rollout.max_staleness and runner.save_interval and (step + 1) % runner.save_interval == 0:
            self._sampler = _on_cpu(self._model.state_dict())
        for group in self._optimizer.param_groups:
            group["lr"] = self._cfg.actor.optim.lr * lr_factor
        batch = self._batch
        generator = torch_generator(self._cfg.runner.seed, step)
        order = torch.randperm(len(batch["tokens"]), generator=generator).to(self._device)
        minibatches = order.split(self._sizes.minibatch_per_rank)
        sums = torch.stack([self._update(indices) for indices in minibatches]).mean(dim=0)
        self._version += 1
        mask = batch["tokens"] != self._tokenizer.pad_id
        unlike = torch.tensor(self._groups_without_signal, device=self._device)
        entropy = token_mean(batch["entropy"], mask)
        told = torch.stack([batch["rewards"].mean(), mask.sum(dim=1).float().mean(), entropy, unlike])
        told = self._ranks.mean(torch.cat([sums, told]))
        names = (*_METRICS, "reward", "response_length", "entropy", "groups_without_signal")
        return dict(zip(names, told.tolist(), strict=True)) | {"staleness": self._staleness}

    def _update(self, indices: Tensor) -> Tensor:
        """One optimiser step on this rank's ``indices`` and the other ranks' own.  Returns :data:`_METRICS`."""
        algorithm = self._cfg.algorithm
        self._optimizer.zero_grad(set_to_none=True)
        means = torch.zeros(len(_METRICS) - 1, device=self._device)
        by_token = algorithm.loss_agg_func == "token-mean"
        tokens = (self._batch["tokens"][indices] != self._tokenizer.pad_id).sum()
        for part in indices.split(self._cfg.actor.micro_batch_size):
            taken = {name: self._batch[name][part] for name in self._batch if name != "rewards"}
            mask = taken["tokens"] != self._tokenizer.pad_id
            share = mask.sum() / tokens if by_token else len(part) / len(indices)
            old = taken["log_probabilities"]
            new = self._log_probabilities(self._model, taken["prompts"], taken["tokens"])
            policy_loss = clipped_policy_loss(new, old, taken["advantages"], mask, *self._clip_range)
            policy_loss = self._aggregate(policy_loss, mask)
            reference = taken.get("reference_log_probabilities", new.detach())
            distance = self._aggregate(kl_penalty(new, reference, mask, algorithm.kl_penalty_type), mask)
            ((policy_loss + algorithm.kl_beta * distance) * share).backward()
            with torch.no_grad():
                moved = token_mean(old - new, mask)
                clipped = token_mean(clipped_tokens(new, old, mask, *self._clip_range), mask)
                means += share * torch.stack([policy_loss, moved, distance, clipped])
        self._ranks.average_gradients(self._model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._cfg.actor.optim.clip_grad)
        self._optimizer.step()
        return torch.cat([means, norm[None]])

    def _judge(self, model: torch.nn.Module) -> Tensor:
        """Log probabilities of the batch's tokens."""
        size = self._cfg.actor.micro_batch_size
        parts = zip(self._batch["prompts"].split(size), self._batch["tokens"].split(size), strict=True)
        return torch.cat([self._log_probabilities(model, prompts, tokens) for prompts, tokens in parts])

    def _log_probabilities(self, model: torch.nn.Module, prompts: Tensor, tokens: Tensor) -> Tensor:
        temperature = self._cfg.algorithm.temperature
        return response_log_probabilities(
            model, prompts, tokens, pad_id=self._tokenizer.pad_id, temperature=temperature
        )


def _on_cpu(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy that training does not change."""
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def _choose(batch: dict[str, Tensor], responses: int) -> dict[str, Tensor]:
    """So many responses in whole groups: first those with a signal, then others, each in their order."""
    rewards = batch["rewards"]
    groups = torch.argsort(has_signal(rewards).int(), descending=True, stable=True)[: responses // rewards.shape[1]]
    groups = groups.sort().values
    rows = (groups[:, None] * rewards.shape[1] + torch.arange(rewards.shape[1])).flatten()
    return {name: tensor[groups if name == "rewards" else rows] for name, tensor in batch.items()}


def _join(parts: Sequence[Experience], pad_id: int) -> dict[str, Tensor]:
    """Batches below each other, one row for each response; prompts padded on the left, responses on the right."""
    responses = [part.responses for part in parts]
    prompt_length = max(part.prompts.shape[1] for part in responses)
    length = max(part.tokens.shape[1] for part in responses)
    group_size = parts[0].rewards.shape[1]
    prompts = [pad(part.prompts, (prompt_length - part.prompts.shape[1], 0), value=pad_id) for part in responses]
    tokens = [pad(part.tokens, (0, length - part.tokens.shape[1]), value=pad_id) for part in responses]
    sampled = [pad(part.log_probabilities, (0, length - part.log_probabilities.shape[1])) for part in responses]
    return {
        "prompts": torch.cat(prompts).repeat_interleave(group_size, dim=0),
        "tokens": torch.cat(tokens),
        "log_probabilities": torch.cat(sampled),
        "rewards": torch.cat([part.rewards for part in parts]),
    }
