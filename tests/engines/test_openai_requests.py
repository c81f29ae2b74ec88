"""Bodies of OpenAI's interface, as requests: plain values."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async.engines.openai_requests import read_requests

MESSAGES = [{"role": "user", "content": "1+2"}]


@pytest.mark.parametrize(
    "fields",
    [
        *({"n": value} for value in (0, 1025, True, "a")),
        *({"seed": value} for value in ("a", 2**70, 1.5)),
        *({"stop": value} for value in (5, [5], [""])),
        *({"stop_token_ids": value} for value in ("a", ["a"], [2**70])),
        *({"tools": value} for value in ("a", {})),
        {"stream": "yes"},
        {"stream_options": 5},
        {"engine_options": []},
        {"chat_template_kwargs": "a"},
        {"user": {}},
        {"logprobs": "a"},
        {"top_logprobs": 5},
        {"tool_choice": "required"},
        {"max_completion_tokens": 0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e-40},
    ],
)
def test_a_malformed_field_is_named(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(ValueError, match=name.replace("max_completion_tokens", "max_tokens")):
        read_requests({"messages": MESSAGES, **fields}, is_chat=True)


@pytest.mark.parametrize(
    "message",
    [
        5,
        {"content": "a"},
        {"role": 5, "content": "a"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]},
    ],
)
def test_a_malformed_message_is_refused(message: Any) -> None:
    with pytest.raises(ValueError, match=r"messages|of a message"):
        read_requests({"messages": [message]}, is_chat=True)


@pytest.mark.parametrize("prompt", [None, [], [[]], [True], [1, "a"], [[1], 2], {}])
def test_a_malformed_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ValueError, match="prompt="):
        read_requests({"prompt": prompt}, is_chat=False)


def test_messages_come_as_chat_templates_take_them() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    [request] = read_requests(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "+2"}]},
                {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "3"},
            ]
        },
        is_chat=True,
    )
    assert request.prompt == [
        {"role": "user", "content": "1+2"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call | {"function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]


def test_other_fields_are_the_engines() -> None:
    body = {"prompt": [[1], "a"], "n": 2, "seed": 3, "min_p": 0.1, "logit_bias": {}, "store": True}
    requests = read_requests(body, is_chat=False)
    assert [(each.prompt, each.seed) for each in requests] == [([1], 3), ([1], 4), ("a", 3), ("a", 4)]
    assert requests[0].engine_options == {"min_p": 0.1}
