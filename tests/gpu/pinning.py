"""Step b: GPUs as the cluster counts them, and each worker's view of its own."""

from __future__ import annotations

from rlinf_async import Cluster, FlexiblePlacementStrategy, PackedPlacementStrategy
from rlinf_async.errors import RLinfAsyncError
from rlinf_async.hardware.nvidia import read_cards, read_use
from tests.gpu.step import Skip, Step, main
from tests.gpu.workers import Pinned, one_node


def check_inventory(step: Step) -> str:
    cards = read_cards()
    use = read_use([str(card.index) for card in cards])
    for card in cards:
        step.say(f"GPU {card.index}", f"{card.model}, {use[str(card.index)]}")
    with one_node() as cluster:
        count = cluster.num_accelerators
        assert count == len(cards), f"the cluster counts {count} accelerators, the driver {len(cards)}"
        node = cluster.get_node_info(0)
        return f"{node.accelerator_type} {node.accelerator_model} {node.accelerators}"


def check_workers_see_their_own_gpu_and_no_other(step: Step) -> str:
    """One worker on each GPU, two on the first; the documented collective; a GPU that is not there."""
    cards = read_cards()
    with one_node() as cluster:
        group = Pinned.create_group().launch(cluster=cluster, name="my_worker_group")
        pair = Pinned.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [0]]), name="pair")
        seen, both = group.look().wait(), pair.look().wait()
        assert len(seen) == len(cards), f"{len(seen)} workers for {len(cards)} GPUs"
        for card, facts in zip([*cards, cards[0], cards[0]], [*seen, *both], strict=True):
            assert facts["uuids"] == [card.uuid.removeprefix("GPU-")], f"a worker on {card} sees {facts['uuids']}"
            assert facts["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", facts
        assert group.compute().wait() == [float(1 << 20)] * len(cards)
        assert pair.compute().wait() == [float(1 << 20)] * 2
        step.say("two ranks on one GPU", f"CUDA_VISIBLE_DEVICES {[facts['CUDA_VISIBLE_DEVICES'] for facts in both]}")
        step.say("a GPU that is not there", refusal_of(cluster, len(cards)))
        tensor = group.initialize().wait()[0]
        assert float(tensor) == len(cards), tensor
        assert group.hello().wait() == list(range(len(cards)))
        step.say("the documented collective", repr(tensor))
    return ", ".join(f"{name}={value}" for name, value in seen[0].items() if name != "uuids")


def refusal_of(cluster: Cluster, index: int) -> str:
    """Return the first line of the error, which must name the GPU."""
    try:
        Pinned.create_group().launch(cluster, PackedPlacementStrategy(index, index), name="none").wait_ready()
    except (RLinfAsyncError, ValueError, AssertionError) as error:
        text = str(error).splitlines()[0]
    else:
        raise AssertionError(f"a worker was launched on GPU {index}, which is not there")
    if str(index) not in text:
        raise AssertionError(f"the error does not name GPU {index}: {text}")
    return text


def check_nccl_between_two_gpus(step: Step) -> None:
    if len(read_cards()) < 2:
        raise Skip("needs two GPUs: the collective of one rank proves nothing of a connection")
    raise Skip("the documented collective above has one rank on each GPU; the tests marked gpu have the links")


CHECKS = [check_inventory, check_workers_see_their_own_gpu_and_no_other, check_nccl_between_two_gpus]

if __name__ == "__main__":
    main("b", CHECKS)
