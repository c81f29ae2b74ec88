"""Group names: lookups that wait."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._core import operations
from rlinf_launcher.daemon.group_names import Names
from rlinf_launcher.daemon.handlers import LATER, Requester


@pytest.mark.parametrize("dies", [False, True], ids=["it is released", "its owner dies"])
async def test_a_lookup_that_waits_for_a_rank_to_come_back_is_refused_when_its_group_ends(dies: bool) -> None:
    answered: list[tuple[Any, ...]] = []
    names = Names(lambda *answer, ok=True: answered.append((*answer, ok)), (), ())
    owner, finder = Requester(1, 1), Requester(2, 5)
    await names.reserve_group(owner, operations.ReserveGroup("actor"))
    await names.publish_group(owner, operations.PublishGroup("actor", [{"endpoint": 9}], True))
    assert await names.find_group(finder, operations.FindGroup("actor", 0, 9)) is LATER
    if dies:
        names.drop(1)
    else:
        await names.release_group(owner, operations.ReleaseGroup("actor"))
    assert answered == [(finder, ["ClosedError", "group 'actor' was closed"], False)]
