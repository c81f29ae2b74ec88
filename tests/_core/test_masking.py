"""Secrets in what is kept or shown."""

from __future__ import annotations

import time

import pytest

from rlinf_async._core.masking import masked, masked_texts, masked_variables


def test_values_whose_names_speak_of_a_secret_are_masked_however_deep() -> None:
    told = {
        "env": {"WANDB_API_KEY": "1", "LANG": "C"},
        "list": [{"password": ["x", {"a": "y"}]}],
        "n": 3,
        "pwd": 1234,
    }
    assert masked(told) == {
        "env": {"WANDB_API_KEY": "***", "LANG": "C"},
        "list": [{"password": ["***", {"a": "***"}]}],
        "n": 3,
        "pwd": "***",
    }


@pytest.mark.parametrize(
    "name",
    ["db_passphrase", "DB_PWD", "REGISTRY_AUTH", "authorization", "SLURM_JWT", "sentry_dsn", "slack.webhook", "Cookie"],
)
def test_words_of_secrets_are_known(name: str) -> None:
    assert masked({name: "value"}) == {name: "***"}


@pytest.mark.parametrize("name", ["author", "tokenizer", "tokenization", "path", "pinned", "passed_by", "max_tokens"])
def test_other_words_are_not(name: str) -> None:
    told = {name: 512 if name == "max_tokens" else "value"}
    assert masked(told) == told


def test_passwords_in_addresses_are_masked() -> None:
    assert masked(["redis://me:pass@host:1/0", "http://host:80/a@b"]) == [
        "redis://me:***@host:1/0",
        "http://host:80/a@b",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://f00ba4@git.lab/x", "https://***@git.lab/x"),
        ("https://f00ba4:@git.lab/x", "https://***@git.lab/x"),
        ("https://f00ba4:x-oauth-basic@git.lab/x", "https://***@git.lab/x"),
        ("redis://:p@ss@host:1/0,redis://a:b@host", "redis://:***@host:1/0,redis://a:***@host"),
        ("https://host/x?sig=1&access_token=abc&n=2", "https://host/x?sig=1&access_token=***&n=2"),
        ("train.py --api-key abc --steps 3", "train.py --api-key *** --steps 3"),
        ("train.py --password=abc --dry-run", "train.py --password=*** --dry-run"),
        ("train.py --hub-token --steps 3", "train.py --hub-token --steps 3"),
        ("trainer.wandb_api_key='a b' n=1", "trainer.wandb_api_key=*** n=1"),
        ('{"auth": "abc", "n": "1"}', '{"auth": ***, "n": "1"}'),
        ("hf_" + "a" * 34, "***"),
        ("key is sk-" + "a" * 20, "key is ***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.abc_d", "***"),
        ("x\n-----BEGIN RSA PRIVATE KEY-----\nabc\n", "x\n***"),
        ("KeyError: 'step', at f(key=3) of tokenizer=fast", "KeyError: 'step', at f(key=3) of tokenizer=fast"),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_any_text(text: str, told: str) -> None:
    assert masked({"note": text}) == {"note": told}
    assert masked_texts({"token": [text]}) == {"token": [told]}


def test_of_variables_only_those_of_the_table_keep_their_values() -> None:
    told = {
        "NCCL_DEBUG": "INFO",
        "RLINF_LEASE_S": "15",
        "SLURM_JOB_ID": "7",
        "NCCL_PASSPHRASE": "hidden",
        "SLURM_JWT": "eyJ",
        "MY_LICENSE": "hidden!",
        "PYPI": "x",
        "RLINF_STORE": "redis://f00@host",
    }
    assert masked_variables(told) == {
        "NCCL_DEBUG": "INFO",
        "RLINF_LEASE_S": "15",
        "SLURM_JOB_ID": "7",
        "NCCL_PASSPHRASE": "*** (length 6)",
        "SLURM_JWT": "*** (length 3)",
        "MY_LICENSE": "*** (length 7)",
        "PYPI": "*** (length 1)",
        "RLINF_STORE": "redis://***@host",
    }
    config = {"node_groups": [{"env_vars": [{"MY_LICENSE": "hidden!"}, {"NCCL_DEBUG": "INFO"}]}]}
    assert masked(config) == {"node_groups": [{"env_vars": [{"MY_LICENSE": "*** (length 7)"}, {"NCCL_DEBUG": "INFO"}]}]}


def test_a_long_text_is_masked_in_no_time() -> None:
    began = time.process_time()
    masked(["pass-" * 50_000, "a" * 250_000, "://" * 80_000, "-" * 250_000])
    assert time.process_time() - began < 2
