"""Worker group ``actor``: trains the model with GRPO on packed sequences, sharded by FSDP2 over its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from checkpoints import OPTIMIZER
from common.data_parallel import DataParallel
from common.devices import pick_device
from common.generators import torch_generator
from grpo import (
    LOSS_AGGREGATIONS,
    clipped_policy_loss,
    clipped_tokens,
    group_relative_advantages,
    kl_penalty,
    token_mean,
    truncated_importance_weights,
)
from language_model import encode_demonstration, load_model, make_tiny_model
from packing import Pack, divide, pack, response_log_probs, response_mask
from reasoning_config import Configuration, clip_range
from responses import Group
from rows import read_rows
from torch import Tensor
from torch.distributed.checkpoint import state_dict as full_states
from torch.nn.utils.rnn import pad_sequence

from rlinf_async import Worker, idempotent, publish

_METRICS = ("policy_loss", "kl_to_engine", "kl_to_reference", "clip_fraction", "grad_norm")


class GRPOActor(Worker):
    """Trains the model.  Several ranks share its parameters, gradients and optimiser states, and the data."""

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Return False before ``init_worker``, also after the process was started again."""
        return self._is_ready

    def make_model(self, folder: Path) -> None:
        """Save a small model with random weights."""
        make_tiny_model(folder, self._cfg.actor.model, self._cfg.runner.seed)

    @idempotent
    def init_worker(self, model_path: str) -> None:
        """Load model and tokenizer; with several ranks, shard the model."""
        cfg, actor = self._cfg, self._cfg.actor
        self._device = pick_device(actor.device)
        if self._device.type == "cpu":
            torch.set_num_threads(actor.cpu_threads)
        self._ranks = DataParallel(self._world_size, self._device)
        self._clip_range, self._aggregate = clip_range(cfg), LOSS_AGGREGATIONS[cfg.algorithm.loss_agg_func]
        self._model, self._tokenizer = load_model(model_path, self._device, self._world_size)
        if actor.gradient_checkpointing:
            self._model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._is_ready = True

    @Worker.timer("warm_start")
    def warm_start(self, path: Path) -> float:
        """Imitate the demonstrations of a file, conversations whose last message is the assistant's.

        Returns:
            The mean loss over the last tenth of the steps, in nats a token.
        """
        options, losses = self._cfg.actor.warm_start, list[Tensor]()
        demonstrations = [encode_demonstration(self._tokenizer, row.prompt) for row in read_rows(path)]
        optimizer = torch.optim.AdamW(self._model.parameters(), lr=options.lr, weight_decay=0.0)
        generator, rise = np.random.default_rng(self._cfg.runner.seed), options.steps / 10
        for step in range(options.steps):
            chosen = generator.integers(len(demonstrations), size=options.batch_size).tolist()
            mine = [demonstrations[index] for index in chosen[self._rank :: self._world_size]]
            share = self._share(sum(len(response) for _, response in mine))
            loss = torch.zeros(())
            for _, packed in self._passes(mine):
                nats = -self._log_probs(self._model, packed).sum() * share
                nats.backward()
                loss += nats.detach().cpu()
            _set_lr(optimizer, options.lr * min((step + 1) / rise, (options.steps - step) / (options.steps - rise)))
            self._step(optimizer, 1.0)
            losses.append(self._ranks.mean(loss))
        return float(torch.stack(losses[-max(1, len(losses) // 10) :]).mean())

    # -- training -----------------------------------------------------------------------------------------------

    def begin_training(self, reference: str, checkpoint: Path | None) -> None:
        """Make the optimiser and, with ``algorithm.kl_beta``, load the reference model; the engines are there.

        Args:
            checkpoint: whose optimiser's state to go on from.
        """
        self._weights, optim = publish(self._model, to="rollout"), self._cfg.actor.optim
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=optim.lr, betas=(0.9, optim.beta2), weight_decay=optim.weight_decay
        )
        self._reference = None
        if self._cfg.algorithm.kl_beta:
            self._reference = load_model(reference, self._device, self._world_size)[0].requires_grad_(False)
        if checkpoint is not None:
            state = torch.load(checkpoint / OPTIMIZER, map_location="cpu", weights_only=True)
            options = full_states.StateDictOptions(full_state_dict=True)
            full_states.set_optimizer_state_dict(self._model, self._optimizer, state, options=options)

    async def publish_weights(self, version: int, wait: bool) -> None:
        """Send the weights to the engines; with ``wait``, until every engine has them."""
        await self._weights.send(version=version)
        if wait:
            await self._weights.delivered()

    @Worker.timer("train")
    def train(self, groups: Sequence[Group], step: int, lr_factor: float) -> dict[str, float]:
        """Learn from this rank's groups, in random minibatches with an optimiser step for each.

        Args:
            step: the training step: it seeds the order.
            lr_factor: multiplies ``actor.optim.lr``.

        Returns:
            Figures, averaged over ranks and optimiser steps.  ``entropy`` is that of a token, estimated from those that
            were sampled.
        """
        _set_lr(self._optimizer, self._cfg.actor.optim.lr * lr_factor)
        self._model.train(self._cfg.actor.gradient_checkpointing)  # which needs it
        batch = self._prepare(groups)
        order = torch.randperm(len(batch), generator=torch_generator(self._cfg.runner.seed, step)).tolist()
        size = self._cfg.actor.global_batch_size // self._world_size
        minibatches = [[batch[index] for index in order[at : at + size]] for at in range(0, len(order), size)]
        means = torch.stack([self._update(minibatch) for minibatch in minibatches]).mean(dim=0)
        sampled = torch.cat([each.sampled for each in batch])
        told = self._ranks.mean(torch.stack([-sampled.mean(), torch.tensor(len(sampled) / len(batch))]))
        names = (*_METRICS, "entropy", "response_length")
        return dict(zip(names, torch.cat([means, told]).tolist(), strict=True))

    def _prepare(self, groups: Sequence[Group]) -> list[_Example]:
        algorithm = self._cfg.algorithm
        rewards = torch.tensor([[response.reward for response in group.responses] for group in groups])
        advantages = group_relative_advantages(rewards, divide_by_std=algorithm.norm_adv_by_std_in_grpo)
        batch = [
            _Example(group.prompt, response.tokens, torch.tensor(response.log_probs), advantage)
            for group, row in zip(groups, advantages, strict=True)
            for response, advantage in zip(group.responses, row, strict=True)
        ]
        if self._reference is not None:
            for example, log_probs in self._judge(self._reference, batch):
                example.reference = log_probs
        if algorithm.importance_sampling_fix:
            for example, proximal in self._judge(self._model, batch):
                mask, limit = torch.ones(len(proximal), dtype=torch.bool), algorithm.importance_sampling_clip
                example.weights = truncated_importance_weights(proximal, example.sampled, mask, limit)
                example.old = proximal
        return batch

    @torch.no_grad()
    def _judge(self, model: Any, batch: Sequence[_Example]) -> Iterable[tuple[_Example, Tensor]]:
        # Yield each example with a model's log probabilities of its response.
        for indices, packed in self._passes([each.sequence for each in batch]):
            rows = self._log_probs(model, packed).cpu()
            for index, row, length in zip(indices, rows, packed.lengths, strict=True):
                yield batch[index], row[:length]

    def _update(self, batch: Sequence[_Example]) -> Tensor:
        # Make one optimiser step on this rank's part of a minibatch. Return _METRICS.
        algorithm, means = self._cfg.algorithm, torch.zeros(len(_METRICS) - 1)
        by_token = algorithm.loss_agg_func == "token-mean"
        share = self._share(sum(len(each.response) for each in batch) if by_token else len(batch))
        for indices, packed in self._passes([each.sequence for each in batch]):
            taken = [batch[index] for index in indices]
            mask = response_mask(packed.lengths, self._device)
            part = share * (len(packed.targets) if by_token else len(taken))
            new = self._log_probs(self._model, packed)
            old = self._padded(each.old for each in taken)
            advantages = self._padded(each.advantage * each.weights for each in taken)
            policy_loss = self._aggregate(clipped_policy_loss(new, old, advantages, mask, *self._clip_range), mask)
            has_reference = self._reference is not None
            reference = self._padded(each.reference for each in taken) if has_reference else new.detach()
            distance = self._aggregate(kl_penalty(new, reference, mask, algorithm.kl_penalty_type), mask)
            ((policy_loss + algorithm.kl_beta * distance) * part).backward()
            with torch.no_grad():
                moved = token_mean(self._padded(each.sampled for each in taken) - new, mask)
                clipped = token_mean(clipped_tokens(new, old, mask, *self._clip_range), mask)
                means += part * torch.stack([policy_loss, moved, distance, clipped]).cpu()
        norm = self._step(self._optimizer, self._cfg.actor.optim.clip_grad)
        return torch.cat([self._ranks.mean(means), norm[None]])

    def _share(self, count: int) -> float:
        # Return the weight of one of ``count`` parts of this rank's loss, such that the mean of the ranks' gradients is
        # the gradient of the mean over the parts of all ranks.
        return self._world_size / float(self._ranks.sum(torch.tensor(float(count))))

    def _passes(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterable[tuple[list[int], Pack]]:
        # Yield the indices and the pack of each forward pass.  Each pass is a collective of ranks that share a model:
        # all make as many as the one that needs most.
        lengths = [len(prompt) + len(response) for prompt, response in sequences]
        limit = self._cfg.actor.max_tokens_per_pass
        passes = divide(lengths, limit)
        if self._world_size > 1:
            count = torch.tensor(len(passes))
            dist.all_reduce(count, dist.ReduceOp.MAX)
            passes = divide(lengths, limit, at_least=int(count))
        for indices in passes:
            yield indices, pack([sequences[index] for index in indices], self._device)

    def _log_probs(self, model: Any, packed: Pack) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._cfg.actor.precision == "bfloat16"):
            return response_log_probs(model, packed)

    def _padded(self, rows: Iterable[Tensor]) -> Tensor:
        return pad_sequence(list(rows), batch_first=True).to(self._device)

    def _step(self, optimizer: torch.optim.Optimizer, clip_grad: float) -> Tensor:
        norm: Any = torch.nn.utils.clip_grad_norm_(self._model.parameters(), clip_grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return (norm.full_tensor() if self._world_size > 1 else norm).cpu()

    def save(self, folder: Path, with_optimizer: bool = False) -> None:
        """Write model and tokenizer in the format of Hugging Face; a collective of all ranks."""
        options = full_states.StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = full_states.get_model_state_dict(self._model, options=options)
        state = None
        if with_optimizer:
            state = full_states.get_optimizer_state_dict(self._model, self._optimizer, options=options)
        if self._rank == 0:
            self._model.save_pretrained(folder, state_dict=weights)
            self._tokenizer.save_pretrained(folder)
            if state is not None:
                torch.save(state, folder / OPTIMIZER)


class _Example:
    # A response to learn from.

    def __init__(self, prompt: list[int], response: list[int], sampled: Tensor, advantage: Tensor) -> None:
        self.response, self.advantage, self.sequence = response, advantage, (prompt, response)
        self.sampled = self.old = self.reference = sampled
        self.weights = torch.ones_like(sampled)


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
