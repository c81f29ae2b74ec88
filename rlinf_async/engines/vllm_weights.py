"""A back end for vLLM's weight transfer: each of vLLM's workers joins the run and maps the trainer's versions.

vLLM's workers import this module because of ``worker_extension_cls``; the import registers the back end.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async.address import WorkerAddress
from rlinf_async.engines.vllm_backed import BACKEND
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, WeightMismatch
from rlinf_async.weights.links.worker_link import WorkerLink
from rlinf_async.weights.plane.subscriber import Subscriber
from rlinf_async.weights.state import messages
from rlinf_async.worker import Worker

logger = own_logger(__name__)


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """The rank that vLLM's workers join, and the weights that they follow; see ``Trainer``."""

    parent: str
    group: str
    rank: int
    name: str
    verify: str


@dataclass
class VersionInfo(WeightTransferUpdateInfo):
    """The version that every worker must load, or a later one, within ``timeout_s`` seconds."""

    version: int
    timeout_s: float


class PlaneWeightTransferEngine(WeightTransferEngine[JoinInfo, VersionInfo]):
    """A receiver of whole versions of the trainer's weights in one of vLLM's worker processes.

    vLLM's loader reads the trainer's memory and copies only this rank's slices. Versions are received on the thread on
    which vLLM calls this object, and only during such calls.
    """

    init_info_cls = JoinInfo
    update_info_cls = VersionInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.version = 0
        self.digests: dict[str, str] = {}
        self._hashes = False
        self._runner = asyncio.Runner()
        self._worker: Worker | None = None
        self._subscriber: Subscriber | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        world = get_world_group()
        if self._worker is None:
            self._worker = Worker(WorkerAddress.from_name(init_info.parent), world.world_size, world.rank_in_group)
        self._hashes = init_info.verify == "sha256"
        self._runner.run(self._join(init_info))

    async def _join(self, info: JoinInfo) -> None:
        if self._subscriber is not None:  # it belongs to a trainer that has ended
            await self._subscriber.close()
        link = WorkerLink(info.group, info.rank, info.name)
        self._subscriber = Subscriber(link, self._load, model_id=info.name, verify=info.verify)
        await link.opened.async_wait()
        link.send([messages.JOIN])

    def start_weight_update(self) -> None:
        """Do nothing, because each load is a complete reload."""

    def finish_weight_update(self) -> None:
        """Do nothing, because each load is a complete reload."""

    def receive_weights(self, update_info: VersionInfo) -> None:
        """Load the same version on all workers of this engine; load nothing if the trainer has ended in the meantime.

        A worker that learns of a version early may load a later one than the other workers, and their shards would not
        match. So the workers exchange their versions, and all load the latest one, until every worker has the same.
        """
        assert self._subscriber is not None
        wanted, begun = update_info.version, clock.monotonic()
        while True:
            error: Exception | None = None
            try:
                self._runner.run(self._subscriber.wait_version(wanted, clock.rest(update_info.timeout_s, begun)))
            except Exception as raised:  # every worker must take part in the exchange below
                error = raised
            versions = self._gather(-1 if error else self._subscriber.version)
            if set(versions) == {-1} and isinstance(error, PeerLost | ClosedError | DeadlineExceeded):
                logger.warning("version %d was not loaded: %s", wanted, error)
                return
            if error is not None:
                raise error
            if -1 in versions:
                raise RuntimeError(f"version {wanted} was loaded by some of vLLM's workers only: {versions}")
            if len(set(versions)) == 1:
                self.version = versions[0]
                return
            wanted = max(versions)

    def _gather(self, version: int) -> list[int]:
        world = get_world_group()
        if world.world_size == 1:
            return [version]
        versions = [torch.zeros(1, dtype=torch.int64) for _ in range(world.world_size)]
        torch.distributed.all_gather(versions, torch.tensor([version]), group=world.cpu_group)
        return [int(each) for each in versions]

    def _load(self, views: dict[tuple[str, ...], torch.Tensor]) -> None:
        if self._hashes:
            self.digests = {".".join(path): _sha256(tensor) for path, tensor in views.items()}
        # The subscriber may load a large version on its own thread, which has neither vLLM's current device nor its
        # autograd modes.
        if self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)
        with torch.no_grad():
            self._reload(views)

    def _reload(self, views: dict[tuple[str, ...], torch.Tensor]) -> None:
        last = ["the first tensor"]

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for path, tensor in views.items():
                last[0] = ".".join(path)
                yield last[0], tensor.to(self.device)

        names = set(dict(self.model.named_parameters()))
        initialize_layerwise_reload(self.model)
        try:
            loaded = self.model.load_weights(weights())
        except Exception as error:
            raise WeightMismatch(
                f"vLLM's {type(self.model).__name__} cannot load {last[0]} "
                f"({type(error).__name__}: {error or 'shapes that differ'}): publish the model under the names and "
                "shapes of its checkpoint, or give publish() rename="
            ) from error
        missing = sorted(names - loaded) if loaded is not None else []
        if missing:
            raise WeightMismatch(
                f"the trainer sends nothing for {', '.join(missing[:3])}{' …' * (len(missing) > 3)} of vLLM's "
                f"{type(self.model).__name__} ({len(missing)} of its parameters)"
            )
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._subscriber is not None:
            self._runner.run(self._subscriber.close())
        self._runner.close()


class WorkerExtension:
    """Methods that the rank calls in vLLM's workers through ``collective_rpc``."""

    weight_transfer_engine: Any

    def rlinf_pid(self) -> int:
        """Return the process id of this worker."""
        # All ranks have mapped vLLM's shared memory by now, so its files can go. vLLM itself would leave them behind.
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if path.startswith("/dev/shm/vllm_dist_"):
                Path(path).unlink(missing_ok=True)
        return os.getpid()

    def rlinf_version(self) -> int:
        """Return the loaded version."""
        return int(self.weight_transfer_engine.version)

    def rlinf_digests(self) -> dict[str, str]:
        """Return a dict that maps the trainer's name of each tensor to the SHA-256 of its last loaded content."""
        return dict(self.weight_transfer_engine.digests)


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, PlaneWeightTransferEngine)
