"""Tests training loops in a simulated cluster: time is virtual, and a seed determines deaths and network cuts.

Names are imported on first use, and torch with the first of them.
"""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async._simulation.faults import Faults as Faults
    from rlinf_async._simulation.scheduler import SimulationError as SimulationError
    from rlinf_async._simulation.sim_cluster import SimCluster as SimCluster
    from rlinf_async._simulation.stand_ins import monotonic as monotonic, sleep as sleep
else:
    __getattr__, __dir__ = lazy_names(__name__)
