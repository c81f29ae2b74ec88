"""Complete versions of the trainer's weights for rollout workers.

``publish`` and ``follow`` transfer weights from one worker group to others; the schemes are TorchRL's, and also serve
other processes. Each name is loaded at first use; until then, torch is not imported.
"""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async.rlinf import *  # noqa: F403
    from rlinf_async.torchrl import *  # noqa: F403
    from rlinf_async.weights.following import Following as Following, follow as follow
    from rlinf_async.weights.model.manifest import Manifest as Manifest
    from rlinf_async.weights.model.param_tree import ParamTree as ParamTree
    from rlinf_async.weights.plane.publisher import Publisher as Publisher
    from rlinf_async.weights.plane.subscriber import Subscriber as Subscriber
    from rlinf_async.weights.publication import Publication as Publication, publish as publish
    from rlinf_async.weights.schemes.none import NoTransport as NoTransport
    from rlinf_async.weights.schemes.worker_scheme import WorkerWeightSyncScheme as WorkerWeightSyncScheme
    from rlinf_async.weights.state.sync_report import Ack as Ack, SyncReport as SyncReport
else:
    __getattr__, __dir__ = lazy_names(__name__)
