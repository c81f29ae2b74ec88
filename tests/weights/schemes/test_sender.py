"""A trainer's sender: what it sends, and its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from torch import nn

from rlinf_async import WorkerWeightSyncScheme


class Stateful(nn.Module):
    def get_extra_state(self) -> Any:
        raise KeyError("tokenizer")


def test_an_error_of_the_model_is_not_taken_for_a_lack_of_one() -> None:
    context = SimpleNamespace(policy=Stateful(), remote_collectors=[Mock()])
    scheme = WorkerWeightSyncScheme()
    scheme.init_on_sender("policy", context)
    with pytest.raises(KeyError, match="tokenizer"):
        scheme.get_sender().send()
    scheme.close()


def test_a_transport_whose_close_raises_keeps_no_other_one_open() -> None:
    scheme = WorkerWeightSyncScheme()
    scheme.init_on_sender("policy", remote_collectors=[Mock(), Mock()])
    broken, other = scheme.get_sender()._transports.values()
    broken.close, other.close = Mock(side_effect=ValueError("it cannot")), Mock(return_value=None)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="it cannot"):
        scheme.close()
    other.close.assert_called_once_with()
