"""Calls of tools in a model's text."""

from __future__ import annotations

import pytest

from rlinf_async.engines.tool_calls import parse_tool_calls, settled_length

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'
ADDED = ("add", '{"a": 1, "b": "é"}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no < call", "no < call", []),
        (ADD, "", [ADDED]),
        (f"I add.\n{ADD}\n{ADD}", "I add.", [ADDED, ADDED]),
        (f"{ADD} later", " later", [ADDED]),
        (ADD.removesuffix("</tool_call>"), "", [ADDED]),
        ('<tool_call>{"name":"now","arguments":{}}</tool_call>', "", [("now", "{}")]),
    ],
)
def test_calls_and_the_text_around_them_are_parted(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse_tool_calls(text) == (content, calls)


@pytest.mark.parametrize(
    "body",
    [
        *("", "add(1)", "[]", "{}", '{"name": 1, "arguments": {}}', '{"name": "a", "arguments": "b"}', "[" * 10**5),
        *('{"name": "a", "arguments": {"b": "\\ud83d"}}', '{"name": "a", "arguments": {"b": NaN}}'),
    ],
)
def test_a_text_with_a_malformed_call_comes_back_whole(body: str) -> None:
    text = f"{ADD} <tool_call>{body}</tool_call>"
    assert parse_tool_calls(text) == (text, [])


@pytest.mark.parametrize(
    "text", ["a <tool_cal b < c", f"I add. \n{ADD}", f"{ADD}x", f"\n\n\na {ADD} b", "a <tool_call>wrong", "a \n <tool_"]
)
def test_text_that_is_settled_never_changes(text: str) -> None:
    whole, _ = parse_tool_calls(text)
    for end in range(len(text)):
        settled = text[: settled_length(text[:end])]
        assert whole.startswith(settled)
    assert settled_length("words, and no call") == len("words, and no call")
