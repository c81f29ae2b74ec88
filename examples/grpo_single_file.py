"""GRPO in one file: a small language model learns to sort digits from a verifier's reward, and sees no solution.

    python examples/grpo_single_file.py                          # or rlinf-launch examples/grpo_single_file.py
    python examples/grpo_single_file.py --seed 1 --updates 50    # every field of Config is an option

The prompt `40925>` is answered by `02459`; the reward is the share of digits that are right.  With seeds 0, 1 and 2
99.5, 95.9 and 99.3 % of the last answers, to prompts drawn at random from 100 000, are right; untrained 0.001 %.
"""

import argparse
import asyncio
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, follow, publish, wait_all


@dataclass(frozen=True)
class Config:
    seed: int = 0
    samplers: int = 2  # processes that answer prompts
    digits: int = 5  # digits in a prompt, and in its answer
    prompts: int = 16  # prompts of each sampler per update
    group: int = 16  # answers per prompt; at least two, because they are compared with each other
    updates: int = 300
    minibatch: int = 256  # answers per optimiser step
    width: int = 64  # of the language model
    lr: float = 2e-3  # initial value; decays to zero
    clip_low: float = 0.2
    clip_high: float = 0.28


class LanguageModel(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.digits = cfg.digits
        self.token, self.place = nn.Embedding(11, cfg.width), nn.Embedding(2 * cfg.digits, cfg.width)
        layer = nn.TransformerEncoderLayer(cfg.width, 4, 4 * cfg.width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(cfg.width), enable_nested_tensor=False)
        self.logits = nn.Linear(cfg.width, 10)

    def forward(self, tokens: Tensor) -> Categorical:
        """``[batch, length]`` → logits of the next digit, at each position from the end of the prompt on."""
        past = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.layers(self.token(tokens) + self.place.weight[: tokens.shape[1]], mask=past, is_causal=True)
        return Categorical(logits=self.logits(hidden[:, self.digits :]))

    def log_probability(self, tokens: Tensor) -> Tensor:
        """``[batch, 2 * digits + 1]`` → ``[batch, digits]``, the log-probability of each digit of the answers."""
        return self(tokens[:, :-1]).log_prob(tokens[:, self.digits + 1 :])


class Sampler(Worker):
    async def sample(self, cfg: Config, answers: Channel) -> float:
        """Answer prompts with each version of the weights. Return the share of right answers in the last 10."""
        torch.set_num_threads(1)
        torch.manual_seed(1000 * cfg.seed + 1 + self._rank)
        model, right = LanguageModel(cfg), []
        async with follow(model, of="trainer") as weights:
            for version in range(1, cfg.updates + 1):
                await weights.wait_version(version)
                async with weights.reading():  # no weights change within this block
                    batch = self.answer(model, cfg)
                await answers.put(batch, key=self._rank)
                right.append((batch["reward"] == 1).float().mean().item())
                if version % 20 == 0:
                    print(f"update {version}: {np.mean(right[-10:]):.1%} of the answers are right", flush=True)
        return float(np.mean(right[-10:]))

    @torch.no_grad()
    def answer(self, model: LanguageModel, cfg: Config) -> dict[str, Tensor]:
        """Return groups of answers to new prompts, with rewards: the verifier knows how to sort, the model does not."""
        prompts = torch.randint(10, (cfg.prompts, cfg.digits)).repeat_interleave(cfg.group, dim=0)
        tokens = nn.functional.pad(prompts, (0, 1), value=10)  # the token ">"
        for _ in range(cfg.digits):
            tokens = torch.cat([tokens, model(tokens).sample()[:, -1:]], dim=1)
        reward = (tokens[:, cfg.digits + 1 :] == prompts.sort(dim=1).values).float().mean(dim=1)
        groups = reward.view(cfg.prompts, cfg.group)
        advantage = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-4)
        old = model.log_probability(tokens)
        return {"tokens": tokens, "old": old, "reward": reward, "advantage": advantage.view(-1, 1)}


class Trainer(Worker):
    async def train(self, cfg: Config, answers: Channel) -> None:
        """Publish version after version of the weights, and reinforce the answers that beat their group's mean."""
        torch.set_num_threads(1)
        torch.manual_seed(1000 * cfg.seed)
        model = LanguageModel(cfg)
        optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
        async with publish(model, to="sampler") as weights:  # version 1
            for update in range(cfg.updates):
                optimizer.param_groups[0]["lr"] = cfg.lr * (1 - update / cfg.updates)
                parts = [await answers.get(key=rank) for rank in range(cfg.samplers)]
                batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
                for rows in torch.randperm(len(batch["tokens"])).split(cfg.minibatch):
                    optimizer.zero_grad()
                    loss(cfg, model, {name: tensor[rows] for name, tensor in batch.items()}).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                await weights.send()


def loss(cfg: Config, model: LanguageModel, batch: dict[str, Tensor]) -> Tensor:
    ratio = torch.exp(model.log_probability(batch["tokens"]) - batch["old"])
    clipped = ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high)
    return -torch.minimum(ratio * batch["advantage"], clipped * batch["advantage"]).mean()


async def main(cfg: Config) -> None:
    async with Cluster(num_nodes=1) as cluster, Channel.create("answers") as answers:
        sampler = Sampler.create_group().launch(cluster, NodePlacementStrategy([0] * cfg.samplers), name="sampler")
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        _, right = await wait_all(trainer.train(cfg, answers), sampler.sample(cfg, answers))
    print(f"right answers in the last 10 updates: {np.mean(right):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    asyncio.run(main(Config(**vars(parser.parse_args()))))
