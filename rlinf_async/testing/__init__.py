"""Tests of training loops without a cluster: a simulated one, in virtual time, with deaths and cuts by a seed."""

from __future__ import annotations

from rlinf_async._core import clock
from rlinf_async._simulation.faults import Faults as Faults
from rlinf_async._simulation.scheduler import SimulationError as SimulationError
from rlinf_async._simulation.sim_cluster import SimCluster as SimCluster
from rlinf_async._simulation.stand_ins import sleep as sleep


def monotonic() -> float:
    """Seconds of the clock by which the framework measures: virtual ones within a simulation."""
    return clock.monotonic()
