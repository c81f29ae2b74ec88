"""Verifier: computes a problem's answer from its prompt, and compares the last number of the response with it."""

from __future__ import annotations

import re

from problems import Problem


def is_correct(prompt: str, response: str | None) -> bool:
    """Whether the last number of ``response`` answers ``prompt``.

    Only the result counts, not the way to it.  The number stands alone after the last ``=`` and as one would write it,
    without a plus or leading zeros: ``44``, not ``+44`` or ``044``.

    Args:
        response: what was written after the prompt; None when it never came to an end.

    Raises:
        ValueError: the prompt is no problem.
    """
    expected = Problem.parse(prompt).answer
    if response is None:
        return False
    answer = response.rpartition("=")[2]
    return re.fullmatch(r"0|-?[1-9][0-9]*", answer) is not None and int(answer) == expected
