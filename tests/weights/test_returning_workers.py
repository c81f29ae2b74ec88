"""Restarted workers: they get the latest version, and all later ones."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from rlinf_async import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from rlinf_async.errors import PeerLost
from tests.weights.ends import Tied


@pytest.mark.parametrize("kind", [MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme])
async def test_a_worker_that_is_back_at_another_pipe_gets_everything(kind: Any) -> None:
    source = Tied(1.0)
    sending = kind()
    (ours, theirs), (new_ours, new_theirs) = multiprocessing.Pipe(), multiprocessing.Pipe()
    with ours, theirs, new_ours, new_theirs:
        sending.init_on_sender("policy", pipes=[ours], source_model=source)
        sender = sending.get_sender()

        async def began(pipe: Any) -> tuple[Any, Tied]:
            model, receiving = Tied(), kind()
            receiving.init_on_worker("policy", pipe=pipe, model=model)
            return receiving, model

        first, _ = await began(theirs)
        connecting = sending.connect(timeout=20)
        await first.connect(timeout=20)
        await connecting
        await first.close()
        with pytest.raises(PeerLost):
            await sender.send(timeout=20)
        with pytest.raises(ValueError, match="Worker 7 not registered"):
            sender.replace(7, new_ours)
        await sender.replace(0, new_ours)
        back, model = await began(new_theirs)
        await back.connect(timeout=20)
        assert model.values() == {1.0}
        assert back.get_receiver().version == sender.version == 2
        serving = back.get_receiver().serve()
        source.fill(3.0)
        assert (await sender.send(timeout=20)).version == 3
        assert model.values() == {3.0}
        await back.close()
        await sending.close()
        assert serving.done()
