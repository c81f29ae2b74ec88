"""Requests that end together with the way to their daemon."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rlinf_async import NodeLost
from rlinf_async._client.requests import Request, Requests
from rlinf_async._core import operations


def test_an_error_of_several_requests_holds_the_frames_of_none() -> None:
    requests = Requests()
    refused, lost = made = [
        requests.begin(Request(cast(Any, None), number, operations.FlushSpans(), 0)) for number in (1, 2)
    ]
    error = NodeLost("gone")
    requests.refuse(refused, error)
    requests.fail(error)
    for request in made:
        with pytest.raises(NodeLost, match="gone"):
            request.wait()
    assert lost.done()
    assert error.__traceback__ is None
