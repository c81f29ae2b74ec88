"""Converts request bodies of OpenAI's HTTP interface to requests for an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from rlinf_async.engines.generation import Prompt, Request

# Token limit for a chat completion without a limit of its own; engines end it at the model's maximum length.
_WHOLE_CONTEXT: Final = 1 << 20
_MOST_CHOICES: Final = 1024

_SAMPLING: Final = {field.name for field in fields(Request)} - {"prompt", "chunk_tokens", "tools", "engine_options"}
_READ_HERE: Final = {
    *("model", "messages", "prompt", "n", "stream", "stream_options", "logprobs", "tools", "tool_choice", "user"),
    *("max_completion_tokens", "engine_options"),
}
_WITHOUT_EFFECT: Final = {
    *("metadata", "store", "service_tier", "parallel_tool_calls", "top_logprobs"),
    *("prompt_cache_key", "safety_identifier"),
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("stream", "ignore_eos"), (bool,)),
    **dict.fromkeys(("n", "seed"), (int,)),
    **dict.fromkeys(("stream_options", "engine_options", "chat_template_kwargs"), (dict,)),
    **dict.fromkeys(("tools", "stop_token_ids"), (list,)),
    "logprobs": (bool, int),
    "stop": (str, list),
    "user": (str,),
}
_TYPE_NAMES: Final = {bool: "true or false", int: "a whole number", dict: "an object", list: "a list", str: "a text"}


def read_requests(body: Mapping[str, Any], *, is_chat: bool) -> list[Request]:
    """Return one request per choice of the answer: ``n`` for each prompt.

    Args:
        body: body of the HTTP request, without null fields.

    Raises:
        ValueError, TypeError: a field is malformed or out of bounds.
    """
    for name, types in _TYPES.items():
        if name in body and type(body[name]) not in types:
            raise ValueError(f"{name}={body[name]!r}: write {' or '.join(_TYPE_NAMES[each] for each in types)}")
    if not 1 <= (count := body.get("n", 1)) <= _MOST_CHOICES:
        raise ValueError(f"n={count}: write a whole number from 1 to {_MOST_CHOICES}")
    if body.get("top_logprobs"):
        raise ValueError("top_logprobs: only the sampled token has a log probability here")
    if body.get("tool_choice", "auto") not in ("auto", "none"):
        raise ValueError(f"tool_choice={body['tool_choice']!r}: no engine here forces calls; write 'auto' or 'none'")
    options = {name: value for name, value in body.items() if name in _SAMPLING}
    default = _WHOLE_CONTEXT if is_chat else 16
    options["max_tokens"] = body.get("max_completion_tokens", body.get("max_tokens", default))
    options["tools"] = body.get("tools", ())
    options["chunk_tokens"] = 1 if body.get("stream") else 64
    options["engine_options"] = {
        name: value
        for name, value in body.items()
        if name not in _SAMPLING | _READ_HERE | _WITHOUT_EFFECT and value not in ({}, [], 0, False)
    } | body.get("engine_options", {})
    seed = body.get("seed")
    return [
        Request(prompt, **(options | {"seed": None if seed is None else seed + number}))
        for prompt in ([_messages(body)] if is_chat else _prompts(body))
        for number in range(count)
    ]


def _prompts(body: Mapping[str, Any]) -> list[Prompt]:
    prompt = body.get("prompt")
    prompts: list[Any] = prompt if isinstance(prompt, list) and prompt and type(prompt[0]) is not int else [prompt]
    if not all(isinstance(each, str) or (each and _is_tokens(each)) for each in prompts):
        raise ValueError(f"prompt={prompt!r}: write a text, a list of token ids, or a list of these")
    return prompts


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not (
        isinstance(messages, list)
        and messages
        and all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages)
    ):
        raise ValueError(f"messages={messages!r}: write a list of messages, each with role and content")
    return [_message(each) for each in messages]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    # Chat templates expect the content as a text, and the arguments of tool calls as objects; clients may send null and
    # JSON strings.
    read = {name: value for name, value in message.items() if value is not None}
    read["content"] = _text_of(read.get("content", ""))
    if "tool_calls" in read:
        try:
            read["tool_calls"] = [_call(each) for each in read["tool_calls"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"tool_calls={read['tool_calls']!r} of a message: write a list of calls, each with a function, whose "
                f"arguments are JSON ({error!r})"
            ) from error
    return read


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    return {**call, "function": {**function, "arguments": parsed}}


def _text_of(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts: list[Any] = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise ValueError("the content of a message has parts that are no text, which the engines here do not take")
    return "".join(texts)
