"""Step b: GPUs as the cluster counts them, and each worker's view of its own."""

from __future__ import annotations

from rlinf_async import Cluster, FlexiblePlacementStrategy, PackedPlacementStrategy
from rlinf_async.errors import RLinfAsyncError
from rlinf_async.hardware.nvidia import read_cards, read_use
from tests.gpu.step import Skip, Step, main
from tests.gpu.workers import Pinned


def check_inventory(step: Step) -> str:
    cards = read_cards()
    with Cluster(num_nodes=1) as cluster:
        assert cluster.num_accelerators == len(cards), f"the cluster counts {cluster.num_accelerators}"
        node = cluster.get_node_info(0)
        step.say("node", str(node))
    return ", ".join(f"{card.index} {card.model} {card.uuid}" for card in cards)


def check_figures_of_the_driver(step: Step) -> str:
    return str(read_use([str(card.index) for card in read_cards()]))


def check_one_worker_on_each_gpu(step: Step) -> str:
    cards = read_cards()
    with Cluster(num_nodes=1) as cluster:
        group = Pinned.create_group().launch(cluster, name="pinned")
        seen = group.look().wait()
        assert len(seen) == len(cards), f"{len(seen)} workers for {len(cards)} GPUs"
        for card, facts in zip(cards, seen, strict=True):
            assert facts["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", facts
            assert len(facts["uuids"]) == 1, facts
            assert facts["uuids"][0].removeprefix("GPU-") == card.uuid.removeprefix("GPU-"), (facts, card)
        assert group.compute().wait() == [float(1 << 20)] * len(cards)
    return str(seen[0])


def check_two_ranks_on_one_gpu(step: Step) -> str:
    with Cluster(num_nodes=1) as cluster:
        group = Pinned.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [0]]), name="pair")
        seen = group.look().wait()
        assert seen[0]["uuids"] == seen[1]["uuids"], seen
        assert group.compute().wait() == [float(1 << 20)] * 2
    return f"CUDA_VISIBLE_DEVICES {seen[0]['CUDA_VISIBLE_DEVICES']!r} and {seen[1]['CUDA_VISIBLE_DEVICES']!r}"


def check_a_gpu_that_is_not_there_is_refused_by_name(step: Step) -> str:
    count = len(read_cards())
    with Cluster(num_nodes=1) as cluster:
        try:
            Pinned.create_group().launch(cluster, PackedPlacementStrategy(count, count), name="none").wait_ready()
        except (RLinfAsyncError, ValueError, AssertionError) as error:
            assert str(count) in str(error), error
            return str(error).splitlines()[0]
    raise AssertionError("it was launched")


def check_the_documented_collective(step: Step) -> str:
    with Cluster(num_nodes=1) as cluster:
        group = Pinned.create_group().launch(cluster=cluster, name="my_worker_group")
        tensor = group.initialize().wait()[0]
        assert float(tensor) == len(read_cards()), tensor
        assert group.hello().wait() == list(range(len(read_cards())))
    return repr(tensor)


def check_nccl_between_two_gpus(step: Step) -> None:
    if len(read_cards()) < 2:
        raise Skip("needs two GPUs: the collective of one rank proves nothing of a connection")


CHECKS = [
    check_inventory,
    check_figures_of_the_driver,
    check_one_worker_on_each_gpu,
    check_two_ranks_on_one_gpu,
    check_a_gpu_that_is_not_there_is_refused_by_name,
    check_the_documented_collective,
    check_nccl_between_two_gpus,
]

if __name__ == "__main__":
    main("b", CHECKS)
