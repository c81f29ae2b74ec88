"""Requests and completions: plain values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async.engines.engine import engine_seed
from rlinf_async.engines.generation import Chunk, Completion, Request, spread_versions


def chunk(start: int, text: str, **options: Any) -> Chunk:
    """Return a chunk with a token for each character."""
    return Chunk(start, [ord(each) for each in text], [-1.0] * len(text), [1] * len(text), text, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("chunk_tokens", 0),
        ("top_k", -1),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", 1e-40),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        pytest.param("temperature", 10**400, id="temperature above all floats"),
        ("seed", 2**63),
        ("seed", 1.5),
        ("stop_token_ids", ("a",)),
        ("top_p", 0),
        ("top_p", 1.1),
        ("prompt", []),
        ("prompt", None),
        ("stop", ("",)),
    ],
)
def test_a_value_out_of_its_bounds_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=.* of a request: write "):
        Request(**{"prompt": "a", name: value})


def test_an_unknown_sampling_parameter_is_named_with_the_likely_one() -> None:
    with pytest.raises(TypeError, match=r"'top_q' \(did you mean 'top_[kp]'.*into engine_options="):
        Request.of("a", {"top_q": 1})


def test_lists_from_json_become_tuples() -> None:
    request = Request("a", stop=["x"], stop_token_ids=[1], tools=[{}])  # type: ignore[arg-type]
    assert (request.stop, request.stop_token_ids, request.tools) == (("x",), (1,), ({},))
    assert Request("a", stop="xyz").stop == ("xyz",)  # type: ignore[arg-type]


def test_keywords_replace_a_requests_values() -> None:
    request = Request("a", max_tokens=3, seed=1)
    assert Request.of(request, {"seed": 2}) == Request("a", max_tokens=3, seed=2)
    assert Request.of([1, 2], {"top_k": 5}) == Request([1, 2], top_k=5)


def test_chunks_make_a_completion() -> None:
    completion = Completion()
    completion.add(chunk(0, "ab", prompt_tokens=[7]))
    completion.add(chunk(2, "c"))
    completion.add(chunk(3, "", finish_reason="stop"))
    assert (completion.text, len(completion.tokens), completion.prompt_tokens) == ("abc", 3, [7])
    assert completion.finish_reason == "stop"


def test_an_earlier_chunk_takes_the_place_of_what_follows() -> None:
    completion = Completion()
    for start, text in ((0, "ab"), (2, "cd"), (4, "ef")):
        completion.add(chunk(start, text))
    completion.add(chunk(2, "xy"))
    assert completion.text == "abxy"
    assert completion.tokens == [ord(each) for each in "abxy"]
    completion.add(chunk(0, "z", finish_reason="length"))
    assert (completion.text, completion.log_probs, completion.versions) == ("z", [-1.0], [1])


def test_missing_tokens_are_an_error() -> None:
    completion = Completion()
    completion.add(chunk(0, "ab"))
    with pytest.raises(ValueError, match="begins at token 3, and the completion has 2"):
        completion.add(chunk(3, "c"))


def test_a_chunk_has_a_log_prob_and_a_version_for_each_token() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 log probabilities and 2 versions"):
        Completion().add(Chunk(0, [1, 2], [-1.0], [1, 1]))


def test_spans_give_each_token_its_version() -> None:
    spans = [(3, 0), (4, 2), (6, 3)]
    assert spread_versions(spans, 0, 5) == [3, 3, 4, 6, 6]
    assert spread_versions(spans, 2, 2) == [4, 6]
    assert spread_versions(spans, 5, 0) == []


def test_engines_of_a_group_have_different_seeds() -> None:
    assert [engine_seed({"seed": 7}, f"llm:{rank}") for rank in range(3)] == [7, 8, 9]
    torch.manual_seed(5)
    assert engine_seed({}, "llm:1") == 5
