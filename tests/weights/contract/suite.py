"""The conformance suite: all claims, in one list."""

from __future__ import annotations

from tests.weights.contract import delivery, destinations, kept, naming, refusals, versions  # noqa: F401  # they register claims
from tests.weights.contract.claims import CLAIMS, Make, Way, claims_apart, claims_of, ways_of

__all__ = ["CLAIMS", "Make", "Way", "claims_apart", "claims_of", "ways_of"]
