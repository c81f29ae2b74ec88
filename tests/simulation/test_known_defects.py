"""The patches that put mended defects back: each applies, and the ones that are found at once are found here."""

from __future__ import annotations

import pytest

from tests.simulation import known_defects


def test_there_are_at_least_twelve() -> None:
    assert len(known_defects.names()) >= 12


@pytest.mark.parametrize("name", known_defects.names())
def test_a_known_defect_can_still_be_put_back(name: str) -> None:
    applied = known_defects.apply(name, known_defects.CHECKOUT, "--check")
    assert not applied.returncode, f"{name}.patch does not apply any more: write it anew\n{applied.stderr}"


@pytest.mark.slow
def test_a_defect_is_found_by_its_seed() -> None:
    found = known_defects.find("call_overtakes_a_cancel", 30, 120)
    assert found["seed"] is not None
    assert "[order]" in str(found["broken"])
