"""Failures of a daemon's tasks, as they are told."""

from __future__ import annotations

from launcher.daemon.node import _leaves


def test_each_error_of_nested_groups_is_told() -> None:
    errors = [ValueError("a"), OSError("b"), KeyError("c")]
    nested = ExceptionGroup("all", [errors[0], ExceptionGroup("some", errors[1:])])
    assert _leaves(nested) == errors
