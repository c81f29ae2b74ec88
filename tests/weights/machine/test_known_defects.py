"""The patches that plant defects: each applies to the code as it is."""

from __future__ import annotations

import pytest

from tests.simulation.known_defects import CHECKOUT
from tests.weights.machine import known_defects


@pytest.mark.parametrize("name", known_defects.names())
def test_a_known_defect_can_still_be_planted(name: str) -> None:
    applied = known_defects.apply(name, CHECKOUT, "--check")
    assert not applied.returncode, f"{name}.patch does not apply any more: write it anew\n{applied.stderr}"
