"""Resolution of a model's path, and errors that name the missing part."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf_async.weights.schemes.configuration import _resolve_model

CONTEXT = SimpleNamespace(
    policy="the policy", env=SimpleNamespace(transform=[SimpleNamespace(net="a"), [1, 2]], models={"v.1": "value"})
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("policy", "the policy"),
        ("env.transform[0].net", "a"),
        ("env.transform[1][-1]", 2),
        ("env.models['v.1']", "value"),
        ('env.models["v.1"]', "value"),
    ],
)
def test_attributes_indices_and_keys_are_followed(path: str, found: object) -> None:
    assert _resolve_model(CONTEXT, path) == found


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("policy.x", AttributeError, r"Attribute x from \['policy', 'x'\] not found in policy=the policy"),
        ("env.nets[0]", AttributeError, r"Attribute nets from \['env', 'nets\[0\]'\] not found in env=namespace"),
        ("env.transform[7]", IndexError, "out of range"),
        ("env.transform[x]", ValueError, r"\[x\] in 'env.transform\[x\]' is neither an integer nor a quoted key"),
        ("env.models['w']", KeyError, "w"),
    ],
)
def test_what_is_missing_is_named(path: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        _resolve_model(CONTEXT, path)
