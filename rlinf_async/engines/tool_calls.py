"""Parser of tool calls in a model's text, in the format of the Hermes and Qwen families."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

ToolParser: TypeAlias = Callable[[str], tuple[str, Sequence[tuple[str, str]]]]
"""Function that returns a completion's text without its tool calls, and the calls as names and JSON arguments."""

_BEGIN: Final = "<tool_call>"
# The last call may lack its end mark because a stop text ended the completion first.
_CALL: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def parse_tool_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Split a text into calls, ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``, and the rest.

    Return the rest of the text, and the calls. A text with a malformed call is returned unchanged and without calls, so
    that the model's mistake remains visible.
    """
    calls = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
            if not (isinstance(call["name"], str) and isinstance(call["arguments"], dict)):
                return text, []
            arguments = json.dumps(call["arguments"], ensure_ascii=False, allow_nan=False)
            (call["name"] + arguments).encode()  # an escaped half of a surrogate pair cannot be sent
        except (ValueError, TypeError, KeyError, RecursionError):
            return text, []
        calls.append((call["name"], arguments))
    # Keep white space at the start, which a stream has already sent.
    return (_CALL.sub("", text).rstrip(), calls) if calls else (text, [])


def settled_length(text: str) -> int:
    """Return how many leading characters of an unfinished text ``parse_tool_calls`` will keep, whatever follows."""
    end = text.find(_BEGIN)
    if end < 0:
        begun = next((count for count in range(len(_BEGIN) - 1, 0, -1) if text.endswith(_BEGIN[:count])), 0)
        end = len(text) - begun
    return len(text[:end].rstrip())
