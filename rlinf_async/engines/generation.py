"""Requests to an engine, and the tokens that it samples, as plain values without IO."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from rlinf_async.configuration import did_you_mean

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat, to which the model's chat template is applied."""

# Dividing logits by less than this may overflow, which crashes the engine.
_LEAST_TEMPERATURE: Final = 0.01

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with its sampling parameters.

    Attributes:
        prompt: text, token ids, or messages of a chat (``[{"role": "user", "content": "…"}]``).
        max_tokens: maximum number of tokens to sample.
        temperature: 0 always takes the likeliest token; other temperatures must be at least 0.01.
        top_p: probability mass of the likeliest tokens to sample from.
        top_k: number of the likeliest tokens to sample from; 0 for all.
        seed: makes sampling reproducible for the same weights and batch.
        stop: texts that end the completion; they are not part of its text.
        stop_token_ids: tokens that end the completion, in addition to the model's own end token.
        ignore_eos: continue to ``max_tokens`` tokens even after the model's end token.
        tools: tool definitions for the chat template, in the format of OpenAI's API.
        chat_template_kwargs: variables for the chat template, such as ``{"enable_thinking": False}`` for Qwen3.
        engine_options: further options specific to the engine, such as ``{"min_p": 0.1}`` for vLLM.
        chunk_tokens: number of tokens per chunk of a stream. Shorter chunks arrive sooner but need more messages.
    """

    prompt: Prompt
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    chunk_tokens: int = 64

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "tools"):  # JSON yields lists
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        _check_whole("max_tokens", self.max_tokens, 1)
        _check_whole("chunk_tokens", self.chunk_tokens, 1)
        _check_whole("top_k", self.top_k, 0)
        for token in self.stop_token_ids:
            _check_whole("stop_token_ids", token, 0)
        if self.seed is not None:
            _check_whole("seed", self.seed, -(2**63))
        if not _is_number(self.temperature) or not (
            self.temperature == 0 or _LEAST_TEMPERATURE <= self.temperature <= sys.float_info.max
        ):
            raise ValueError(
                f"temperature={self.temperature!r} of a request: write 0, or a number from {_LEAST_TEMPERATURE} on"
            )
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r} of a request: write a number above 0, at most 1")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop={self.stop!r} of a request: write texts of a character or more")
        if not isinstance(self.prompt, str) and not (isinstance(self.prompt, Sequence) and self.prompt):
            raise ValueError(f"prompt={self.prompt!r} of a request: write a text, token ids, or messages")

    @classmethod
    def of(cls, prompt: Request | Prompt, sampling: Mapping[str, Any]) -> Request:
        """Build a request from a prompt and keyword arguments, or return a copy of a request with values replaced.

        Raises:
            TypeError: there is no such sampling parameter.
            ValueError: a value is out of bounds.
        """
        known = cls.__dataclass_fields__.keys() - {"prompt"}
        for name in sampling.keys() - known:
            raise TypeError(
                f"unknown sampling parameter {name!r}{did_you_mean(name, known)}: there are "
                f"{', '.join(sorted(known))}; others of the engine's own go into engine_options="
            )
        return replace(prompt, **sampling) if isinstance(prompt, Request) else cls(prompt, **sampling)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that an engine has sampled for one request since the previous chunk.

    Attributes:
        start: position of the first token in the completion. If it lies before the end of the tokens received so far,
            the chunk replaces all tokens from that position on, because they were sampled again.
        tokens: ids of the tokens.
        log_probs: log probability of each token in the model's own distribution, before temperature and truncation.
        versions: version of the weights with which each token was sampled; 0 for the weights from the model's path.
        text: text added by these tokens.
        finish_reason: why the completion has ended: at an end token or stop text, or at ``max_tokens``; None until
            then.
        prompt_tokens: ids of the prompt's tokens; set only in a rank's first chunk.
    """

    start: int
    tokens: list[int]
    log_probs: list[float]
    versions: list[int]
    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: list[int] | None = None

    def extended(self, after: Chunk) -> Chunk | None:
        """Return this chunk joined with the next; None if the next chunk does not start where this one ends."""
        if after.start != self.start + len(self.tokens):
            return None
        return Chunk(
            self.start,
            self.tokens + after.tokens,
            self.log_probs + after.log_probs,
            self.versions + after.versions,
            self.text + after.text,
            after.finish_reason,
            self.prompt_tokens,
        )


@dataclass(slots=True)
class Completion:
    """A prompt and everything sampled for it.

    Attributes:
        index: position of the prompt in the list passed to ``generate``.
        prompt_tokens: ids of the prompt's tokens.
        tokens, log_probs, versions, text, finish_reason: same as for ``Chunk``.
    """

    index: int = 0
    prompt_tokens: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    # Lengths of ``tokens`` and ``text`` after each chunk.
    _ends: list[tuple[int, int]] = field(default_factory=list, repr=False)

    def add(self, chunk: Chunk) -> None:
        """Append a chunk; first drop the tokens that it replaces.

        Raises:
            ValueError: tokens are missing between the previous chunk and this one, or the chunk is malformed.
        """
        if not len(chunk.tokens) == len(chunk.log_probs) == len(chunk.versions):
            raise ValueError(
                f"a chunk has {len(chunk.tokens)} tokens, {len(chunk.log_probs)} log probabilities and "
                f"{len(chunk.versions)} versions: an engine gives one of each per token"
            )
        while self._ends and self._ends[-1][0] > chunk.start:
            self._ends.pop()
        tokens, characters = self._ends[-1] if self._ends else (0, 0)
        if tokens != chunk.start:
            raise ValueError(f"a chunk begins at token {chunk.start}, and the completion has {len(self.tokens)} tokens")
        for values in (self.tokens, self.log_probs, self.versions):
            del values[tokens:]
        self.tokens += chunk.tokens
        self.log_probs += chunk.log_probs
        self.versions += chunk.versions
        self.text = self.text[:characters] + chunk.text
        self.finish_reason = chunk.finish_reason
        self.prompt_tokens = chunk.prompt_tokens or self.prompt_tokens
        self._ends.append((len(self.tokens), len(self.text)))


def spread_versions(spans: Sequence[tuple[int, int]], first: int, count: int) -> list[int]:
    """Return the versions of the ``count`` tokens starting at position ``first``.

    Args:
        spans: pairs of a version and the position of its first token, sorted by position.
    """
    versions = []
    span = -1
    for position in range(first, first + count):
        while span + 1 < len(spans) and spans[span + 1][1] <= position:
            span += 1
        versions.append(spans[span][0])
    return versions


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise ValueError(f"{name}={value!r} of a request: write a whole number from {least} on, of 64 bits")
