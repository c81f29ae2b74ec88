from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from arithmetic import Arithmetic
from common.generators import torch_generator
from generation import generate
from grpo import (
    LOSS_AGGREGATIONS,
    clipped_policy_loss,
    clipped_tokens,
    group_relative_advantages,
    has_signal,
    kl_penalty,
    seq_mean_token_mean,
    token_mean,
    truncated_importance_weights,
)
from language_model import build_model, load_model, response_log_probabilities, save_model
from pass_at_k import pass_at_k
from reasoning_config import SCHEMA
from solver import Solver
from tokenizer import CharacterTokenizer

from rlinf_async.errors import ConfigError

TOKENIZER = CharacterTokenizer(Arithmetic.characters)
ALL = torch.ones(2, 3, dtype=torch.bool)


@pytest.fixture(scope="module")
def model() -> Any:
    size = SCHEMA.load("two_terms_disaggregated", ["actor.model.hidden_size=16"]).actor.model
    return build_model(size, TOKENIZER, seed=0)


def test_an_advantage_is_relative_to_the_group_in_standard_deviations() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    advantages = group_relative_advantages(rewards, epsilon=0.0 + 1e-9)
    torch.testing.assert_close(advantages[0], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    torch.testing.assert_close(advantages[1], torch.tensor([0.5, 0.5, 0.5, -1.5]))
    assert advantages[2].tolist() == [0.0] * 4


def test_without_the_division_an_advantage_is_in_rewards() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert group_relative_advantages(rewards, divide_by_std=False).tolist() == [[0.75, -0.25, -0.25, -0.25]]


def test_a_group_that_is_all_alike_has_no_signal() -> None:
    assert has_signal(torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])).tolist() == [False, False, True]


def test_the_gradient_ends_where_the_ratio_has_moved_far_enough_in_the_wanted_direction() -> None:
    old = torch.zeros(2, 3)
    new = torch.tensor([[0.5, 0.0, -0.5], [0.5, 0.0, -0.5]], requires_grad=True)
    clipped_policy_loss(new, old, torch.tensor([[1.0], [-1.0]]), ALL, 0.2, 0.2).mean().backward()
    assert new.grad is not None
    assert (new.grad != 0).tolist() == [[False, True, True], [True, True, False]]
    assert clipped_tokens(new, old, ALL, 0.2, 0.2).mean().item() == pytest.approx(2 / 3)


def test_a_higher_upper_limit_leaves_likelier_tokens_their_gradient() -> None:
    new = torch.tensor([[0.25, 0.5, -0.25]]).log1p().requires_grad_()
    clipped_policy_loss(new, torch.zeros(1, 3), torch.ones(1, 1), ALL[:1], 0.2, 0.3).sum().backward()
    assert new.grad is not None
    assert (new.grad != 0).tolist() == [[True, False, True]]
    assert clipped_tokens(new, torch.zeros(1, 3), ALL[:1], 0.2, 0.3).tolist() == [[0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 4) / 4),
        ("seq-mean-token-mean", ((1 + 2 + 3) / 3 + 4) / 2),
        ("seq-mean-token-sum", ((1 + 2 + 3) + 4) / 2),
    ],
)
def test_losses_are_aggregated_without_padding_whatever_stands_there(name: str, expected: float) -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, float("inf"), float("nan")]])
    assert LOSS_AGGREGATIONS[name](values, mask).item() == expected


def test_padding_counts_for_nothing_in_the_policy_loss() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e30, -1e30]])
    loss = clipped_policy_loss(torch.zeros(2, 3), old, torch.ones(2, 1), mask, 0.2, 0.2)
    assert seq_mean_token_mean(loss, mask).item() == token_mean(loss, mask).item() == -1.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", -math.log(2)),
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 2 - 1 - math.log(2)),
        ("low_var_kl", 2 - 1 - math.log(2)),
        ("abs", math.log(2)),
    ],
)
def test_an_estimate_of_the_kl_is_its_formula_and_zero_at_the_reference(kind: str, expected: float) -> None:
    here = torch.full((2, 3), -1.0)
    assert kl_penalty(here, here, ALL, kind).abs().sum().item() == 0.0
    twice = kl_penalty(here, here + math.log(2), ALL, kind)  # the reference gives twice the probability
    torch.testing.assert_close(twice, torch.full((2, 3), expected))


def test_importance_weights_are_the_ratio_of_trainer_to_sampler_up_to_their_limit() -> None:
    sampled = torch.tensor([[0.5, 0.5, 0.1]]).log()
    trained = torch.tensor([[0.25, 0.75, 0.9]]).log()
    weights = truncated_importance_weights(trained, sampled, ALL[:1], clip=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 1.5, 2.0]]))


@pytest.mark.parametrize(("right", "samples", "k"), [(0, 5, 2), (2, 5, 1), (2, 5, 3), (3, 6, 4), (6, 6, 6)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_have_a_right_one(right: int, samples: int, k: int) -> None:
    verdicts = [True] * right + [False] * (samples - right)
    choices = list(itertools.combinations(verdicts, k))
    assert pass_at_k(right, samples, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_more_than_the_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"pass@17 of 16 samples"):
        pass_at_k(1, 16, 17)


@pytest.mark.parametrize("seed", [2**32 + 1, 2**64 + 1, 10**30])
def test_a_seed_may_have_any_size(seed: int) -> None:
    size = SCHEMA.load("two_terms_disaggregated", ["actor.model.hidden_size=16"]).actor.model
    here, there = (build_model(size, TOKENIZER, seed=number).lm_head.weight for number in (seed, seed + 1))
    assert not torch.equal(here, there)
    assert torch_generator(seed, 3).initial_seed() != torch_generator(seed, 4).initial_seed()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampling_with_a_cache_and_scoring_without_agree(model: Any, temperature: float) -> None:
    """Whatever the lengths of the prompts; the ratio of a fresh sample is one."""
    prompts = torch.tensor(TOKENIZER.pad_left(["1+2=", "27+48=", "9-9="]))
    generated = generate(
        model,
        prompts,
        samples=4,
        max_new_tokens=6,
        temperature=temperature,
        pad_id=TOKENIZER.pad_id,
        end_id=TOKENIZER.end_id,
        generator=torch.Generator().manual_seed(1),
    )
    scored = response_log_probabilities(
        model, prompts.repeat_interleave(4, 0), generated.tokens, pad_id=TOKENIZER.pad_id, temperature=temperature
    )
    mask = generated.tokens != TOKENIZER.pad_id
    torch.testing.assert_close(scored[mask], generated.log_probabilities[mask], rtol=1e-4, atol=1e-4)
    assert (generated.log_probabilities[~mask] == 0).all()


def test_nothing_follows_the_end_of_a_response(model: Any) -> None:
    prompts = torch.tensor(TOKENIZER.pad_left(["1+2="])).repeat(64, 1)
    generator = torch.Generator().manual_seed(0)
    rows = generate(
        model, prompts, samples=1, max_new_tokens=8, temperature=5.0, pad_id=0, end_id=1, generator=generator
    ).tokens.tolist()
    ended = [row for row in rows if 1 in row[:-1]]
    assert ended
    assert all(set(row[row.index(1) + 1 :]) == {0} for row in ended)


def test_a_response_without_an_end_is_none(model: Any) -> None:
    solver = Solver(model, TOKENIZER, max_new_tokens=1, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    _, texts = solver.sample(solver.prompts(["1+2="]), samples=64, temperature=3.0, generator=generator)
    assert set(texts) == {None, ""}
    assert solver.answer([]) == []


def test_a_model_is_kept_in_a_folder_with_its_tied_weights(model: Any, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    again = load_model(str(tmp_path), TOKENIZER)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_model_with_another_vocabulary_is_refused(model: Any, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    with pytest.raises(ConfigError, match=r"knows 15 tokens, the tokenizer 5; set actor\.tokenizer\.tokenizer_model"):
        load_model(str(tmp_path), CharacterTokenizer("abc"))
    with pytest.raises(ConfigError, match="no model in nowhere"):
        load_model("nowhere", TOKENIZER)
