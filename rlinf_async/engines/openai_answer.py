"""``Answer``: collects the chunks of a response for OpenAI's HTTP interface, and converts them to JSON."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from typing import Any

from rlinf_async.engines.generation import Chunk, Completion
from rlinf_async.engines.openai_requests import read_requests
from rlinf_async.engines.tool_calls import ToolParser, parse_tool_calls, settled_length
from rlinf_async.errors import ClosedError


class Answer:
    """The choices of one response, returned as a whole or in the parts of a stream.

    Args:
        body: body of the request, without null fields.
        parser: parser of tool calls; None leaves them in the text.

    Raises:
        ValueError, TypeError: a field is malformed or out of bounds.
    """

    def __init__(self, body: Mapping[str, Any], is_chat: bool, model: str, parser: ToolParser | None) -> None:
        self.body = body
        self.requests = read_requests(body, is_chat=is_chat)
        self.choices = [Completion(index=index) for index in range(len(self.requests))]
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._is_chat = is_chat
        self._parser = parser if is_chat and body.get("tools") and body.get("tool_choice") != "none" else None
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._facts = {"id": self.id, "created": int(time.time()), "model": model}
        # Maps each choice's index to the numbers of its tokens and characters already sent in the stream.
        self._told: dict[int, tuple[int, int]] = {}
        # Maps each finished choice's index to its text and tool calls.
        self._parsed: dict[int, tuple[str, list[dict[str, Any]]]] = {}

    def add(self, index: int, chunk: Chunk) -> None:
        """Add a chunk of a choice; only an answer whose chunks can all be added is worth a turn.

        Raises:
            ClosedError: the chunk replaces tokens that were already sent in the stream.
            RuntimeError: a log probability is not finite, or the parser of tool calls has failed.
        """
        if not all(map(math.isfinite, chunk.log_probs)):
            raise RuntimeError(
                f"a log probability of weights {max(chunk.versions)} is no finite number: training has diverged"
            )
        if chunk.start < self._told.get(index, (0, 0))[0]:
            raise ClosedError("the engine was lost, and its tokens cannot be taken back: ask again")
        self.choices[index].add(chunk)
        if chunk.finish_reason is not None:
            self._parsed[index] = self._parse(self.choices[index].text)

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.choices)

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, each in enumerate(self.choices):
            content, calls = self._parsed[index]
            choice = self._choice(index, each, bool(calls))
            if self._is_chat:
                message = {"role": "assistant", "content": content}
                choice["message"] = message | {"content": content or None, "tool_calls": calls} if calls else message
            else:
                choice["text"] = content
            choices.append(choice | {"prompt_token_ids": each.prompt_tokens})
        return {**self._facts, "object": self._kind, "choices": choices, "usage": self._usage()}

    def part(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """Return the stream's part for the chunk that was added last."""
        _, characters = self._told.get(index, (0, 0))
        text, calls = self.choices[index].text, list[dict[str, Any]]()
        if chunk.finish_reason is not None:
            text, calls = self._parsed[index]
        elif self._parser is not None:  # in a custom format, a call may begin with any text
            text = text[: settled_length(text) if self._parser is parse_tool_calls else 0]
        choice = self._choice(index, chunk, bool(calls))
        if self._is_chat:
            choice["delta"] = {"content": text[characters:]}
            if index not in self._told:
                choice["delta"]["role"] = "assistant"
            if calls:
                choice["delta"]["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        else:
            choice["text"] = text[characters:]
        if chunk.prompt_tokens is not None:
            choice["prompt_token_ids"] = chunk.prompt_tokens
        self._told[index] = chunk.start + len(chunk.tokens), len(text)
        return self._part([choice])

    def usage_part(self) -> dict[str, Any] | None:
        """Return the last part of a stream, with token counts; None if the client did not request them."""
        is_asked_for = self.body.get("stream_options", {}).get("include_usage")
        return self._part([]) | {"usage": self._usage()} if is_asked_for else None

    def _part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._facts, "object": self._kind + ".chunk" * self._is_chat, "choices": choices}

    def _parse(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        if self._parser is None:
            return text, []
        try:
            content, calls = self._parser(text)
            functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        except Exception as error:
            raise RuntimeError(f"tool_parser={self._parser!r} of openai_server() failed on {text!r}") from error
        return content, [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": each} for each in functions]

    def _choice(self, index: int, sampled: Chunk | Completion, has_calls: bool) -> dict[str, Any]:
        names = [f"token_id:{token}" for token in sampled.tokens]
        log_probs: dict[str, Any] | None = None
        if self.body.get("logprobs", False) is not False:
            log_probs = {"tokens": names, "token_logprobs": sampled.log_probs, "top_logprobs": None, "text_offset": []}
            if self._is_chat:
                pairs = zip(names, sampled.log_probs, strict=True)
                log_probs = {
                    "content": [
                        {"token": name, "logprob": each, "bytes": None, "top_logprobs": []} for name, each in pairs
                    ]
                }
        is_call = has_calls and sampled.finish_reason == "stop"
        return {
            "index": index,
            "finish_reason": "tool_calls" if is_call else sampled.finish_reason,
            "logprobs": log_probs,
            "token_ids": sampled.tokens,
            "log_probs": sampled.log_probs,
            "weight_versions": sampled.versions,
        }

    def _usage(self) -> dict[str, int]:
        # The choices of one prompt are adjacent, so count its tokens only at every n-th choice.
        prompt = sum(len(each.prompt_tokens) for each in self.choices[:: self.body.get("n", 1)])
        sampled = sum(len(each.tokens) for each in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
