"""Plugin of pytest: the first example that fails is enough to kill a mutant, and a smaller one would take minutes."""

from __future__ import annotations

from hypothesis import Phase, settings


def pytest_sessionstart() -> None:
    settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile("mutants")
