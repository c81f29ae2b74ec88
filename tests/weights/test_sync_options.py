"""Invalid options of schemes: refused at construction."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async import (
    DistributedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WorkerWeightSyncScheme,
)
from rlinf_async.errors import ConfigError
from rlinf_async.rlinf import WeightSyncer

every_scheme = pytest.mark.parametrize(
    "scheme",
    [
        DistributedWeightSyncScheme,
        MultiProcessWeightSyncScheme,
        NoWeightSyncScheme,
        SharedMemWeightSyncScheme,
        WorkerWeightSyncScheme,
    ],
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("bf16", "got 'bf16': 'bfloat16', perhaps"),
        (5, "got 5"),
        (torch.int8, "got torch.int8"),
        ("nn", "got 'nn'"),
    ],
)
@every_scheme
def test_a_dtype_to_travel_in_that_is_none(scheme: Any, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"transport_dtype= is a floating-point dtype.*{words}"):
        scheme(transport_dtype=value)


@pytest.mark.parametrize("value", [None, torch.bfloat16, "bfloat16", "torch.float16", lambda name, dtype: None])
def test_a_dtype_its_name_or_a_function(value: Any) -> None:
    assert MultiProcessWeightSyncScheme(transport_dtype=value).options.transport_dtype is value


@every_scheme
def test_a_strategy_that_there_is_not(scheme: Any) -> None:
    with pytest.raises(ValueError, match=r"Unknown strategy: pickle\. Must be 'tensordict' or 'state_dict'"):
        scheme(strategy="pickle")


@every_scheme
def test_a_strictness_that_is_no_truth_value(scheme: Any) -> None:
    with pytest.raises(ConfigError, match="strict_dtype= is one of False, True; got 'bfloat16'"):
        scheme(strict_dtype="bfloat16")


def test_digests_are_refused_where_they_have_no_way_back() -> None:
    with pytest.raises(ConfigError, match=r"DistributedWeightSyncScheme cannot do verify='sha256': .*leave it out"):
        DistributedWeightSyncScheme(verify="sha256")
    with pytest.raises(ConfigError, match="a bucket syncer has no option 'verify'"):
        WeightSyncer.create({"type": "bucket", "bucket": {"verify": "sha256"}})
