"""Worker group ``actor``: trains the model with GRPO, data-parallel, after a supervised warm start."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from batches import Batches
from common.data_parallel import DataParallel
from common.devices import pick_device
from experience import Experience, Queues
from grpo import clip_fraction, clipped_policy_loss, group_relative_advantages, mean_of_responses, reference_kl
from language_model import make_policy, response_log_probabilities, save_model
from omegaconf import DictConfig
from problems import ProblemSets, ProblemSpace
from solver import Solver
from tokenizer import CharacterTokenizer
from torch import Tensor
from torch.nn.functional import pad
from warm_start import WarmStartReport, warm_start

from rlinf_async import Worker, publish

_METRICS = ("policy_loss", "kl_to_sampler", "kl_to_reference", "clip_fraction", "grad_norm")


class GRPOActor(Worker):
    """Trains the model with GRPO, data-parallel over its ranks: each has all of it, and gradients are averaged."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._cfg = cfg

    def init_worker(self, sizes: Batches) -> None:
        """Builds the model, the same on every rank, from ``actor.model.model_path`` where that is given."""
        torch.set_num_threads(1)
        cfg = self._cfg
        self._sizes = sizes
        self._device = pick_device(cfg.actor.device)
        self._ranks = DataParallel(self._world_size, self._device)
        self._tokenizer = CharacterTokenizer.load(cfg.actor.tokenizer.tokenizer_model)
        self._model = make_policy(cfg.actor.model.model_path, cfg, self._tokenizer).to(self._device)
        self._weights = publish(self._model, to="rollout")

    @Worker.timer("warm_start")
    def warm_start(self, sets: ProblemSets) -> WarmStartReport:
        """Imitates worked solutions until some answers are right.

        Raises:
            WarmStartFailed: they never were.
        """
        space = ProblemSpace(self._cfg.data.terms, self._cfg.data.largest)
        solver = Solver(self._model, self._tokenizer, space.longest_solution + 1, self._device)
        return warm_start(solver, sets, self._cfg, self._ranks)

    def begin_training(self) -> None:
        """Makes the optimiser; with ``algorithm.kl_beta``, the model as it is now becomes the reference."""
        optim = self._cfg.actor.optim
        self._version = 1
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=optim.lr, betas=(0.9, optim.beta2), weight_decay=optim.weight_decay
        )
        self._reference = copy.deepcopy(self._model).requires_grad_(False) if self._cfg.algorithm.kl_beta else None

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

    async def recv_rollout_batch(self, queues: Queues) -> None:
        """Takes this rank's share of a training step's experience."""
        mine = range(self._rank, self._sizes.count, self._world_size)
        parts: list[Experience] = [await queues.experience.get(key=self._rank) for _ in mine]
        # In an order that does not depend on who was first.
        parts.sort(key=lambda part: part.responses.index)
        self._batch = {name: tensor.to(self._device) for name, tensor in _join(parts, self._tokenizer.pad_id).items()}
        versions = [part.responses.weight_version for part in parts]
        self._staleness = self._version - sum(versions) / len(versions)

    @Worker.timer("compute_advantages")
    @torch.no_grad()
    def compute_advantages(self) -> None:
        """Advantages within each group, and what the reference makes of the responses, where there is one."""
        batch = self._batch
        batch["advantages"] = group_relative_advantages(batch["rewards"]).flatten()
        if self._reference is not None:
            size = self._cfg.actor.micro_batch_size
            parts = zip(batch["prompts"].split(size), batch["tokens"].split(size), strict=True)
            judged = [self._log_probabilities(self._reference, prompts, tokens) for prompts, tokens in parts]
            batch["reference_log_probabilities"] = torch.cat(judged)

    @Worker.timer("run_training")
    def run_training(self, step: int, lr_factor: float) -> dict[str, float]:
        """One pass over the experience in random minibatches, an optimiser step for each.

        Args:
            step: the training step: it seeds the order.
            lr_factor: multiplies ``actor.optim.lr``.

        Returns:
            Metrics, averaged over ranks and optimiser steps; ``staleness`` is the number of training steps that the
            weights were behind which had sampled the responses.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = self._cfg.actor.optim.lr * lr_factor
        batch = self._batch
        seed = (self._cfg.runner.seed << 32) + step
        order = torch.randperm(len(batch["tokens"]), generator=torch.Generator().manual_seed(seed)).to(self._device)
        minibatches = order.split(self._sizes.minibatch_per_rank)
        sums = torch.stack([self._update(indices) for indices in minibatches]).mean(dim=0)
        self._version += 1
        lengths = (batch["tokens"] != self._tokenizer.pad_id).sum(dim=1).float()
        mixed = (batch["rewards"].std(dim=1) > 0).float()
        told = torch.stack([batch["rewards"].mean(), lengths.mean(), mixed.mean()])
        told = self._ranks.mean(torch.cat([sums, told]))
        names = (*_METRICS, "reward", "response_length", "groups_with_signal")
        return dict(zip(names, told.tolist(), strict=True)) | {"staleness": self._staleness}

    def _update(self, indices: Tensor) -> Tensor:
        """One optimiser step on this rank's ``indices`` and the other ranks' own.  Returns :data:`_METRICS`."""
        algorithm = self._cfg.algorithm
        self._optimizer.zero_grad(set_to_none=True)
        means = torch.zeros(len(_METRICS) - 1, device=self._device)
        for part in indices.split(self._cfg.actor.micro_batch_size):
            share = len(part) / len(indices)
            taken = {name: self._batch[name][part] for name in self._batch if name != "rewards"}
            mask = taken["tokens"] != self._tokenizer.pad_id
            old = taken["log_probabilities"]
            new = self._log_probabilities(self._model, taken["prompts"], taken["tokens"])
            policy_loss = clipped_policy_loss(new, old, taken["advantages"], mask, algorithm.clip_ratio)
            reference = taken.get("reference_log_probabilities", new.detach())
            distance = reference_kl(new, reference, mask)
            ((policy_loss + algorithm.kl_beta * distance) * share).backward()
            with torch.no_grad():
                moved = mean_of_responses(old - new, mask)
                clipped = clip_fraction(new, old, mask, algorithm.clip_ratio)
                means += share * torch.stack([policy_loss, moved, distance, clipped])
        self._ranks.average_gradients(self._model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._cfg.actor.optim.clip_grad)
        self._optimizer.step()
        return torch.cat([means, norm[None]])

    def _log_probabilities(self, model: torch.nn.Module, prompts: Tensor, tokens: Tensor) -> Tensor:
        temperature = self._cfg.algorithm.temperature
        return response_log_probabilities(
            model, prompts, tokens, pad_id=self._tokenizer.pad_id, temperature=temperature
        )


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
