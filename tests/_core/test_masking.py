"""Secrets in what is kept or shown."""

from __future__ import annotations

from rlinf_async._core.masking import masked


def test_values_whose_names_speak_of_a_secret_are_masked_however_deep() -> None:
    told = {
        "env": {"WANDB_API_KEY": "1", "LANG": "C"},
        "list": [{"password": ["x", {"a": "y"}]}],
        "n": 3,
    }
    assert masked(told) == {
        "env": {"WANDB_API_KEY": "***", "LANG": "C"},
        "list": [{"password": ["***", {"a": "y"}]}],
        "n": 3,
    }


def test_passwords_in_addresses_are_masked() -> None:
    assert masked(["redis://me:pass@host:1/0", "http://host:80/a@b"]) == [
        "redis://me:***@host:1/0",
        "http://host:80/a@b",
    ]
