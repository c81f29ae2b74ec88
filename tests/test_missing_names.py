"""Lookup of missing names: one deadline; closed names fail at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Channel, ClosedError, Cluster, DeadlineExceeded, WorkerGroup, settings
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

LIMIT_S = 0.2


class Seeker(Plain):
    """Looks for what it is told."""

    def seek(self, kind: str, name: str) -> str:
        try:
            SEEK[kind](self, name)
        except (ClosedError, DeadlineExceeded) as error:
            return f"{type(error).__name__}: {error}"
        return "found"


SEEK: dict[str, Any] = {
    "recv": lambda worker, name: worker.recv(name, 0),
    "send": lambda worker, name: worker.send("x", name, 0),
    "broadcast": lambda worker, name: worker.broadcast("x", groups=[("seeker", [0]), (name, [0])]),
    "channel": lambda worker, name: worker.connect_channel(name),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.NAME_TIMEOUT_S.variable, str(LIMIT_S))
        with Cluster(num_nodes=1, log_to_driver=False) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def seeker(cluster: Cluster) -> Iterator[Any]:
    group = Seeker.create_group().launch(cluster, name="seeker").wait_ready()
    yield group
    group.close()


@pytest.mark.parametrize("kind", SEEK)
def test_a_worker_gives_up_a_name_that_does_not_come(seeker: Any, kind: str) -> None:
    what = "channel" if kind == "channel" else "group"
    (said,) = seeker.seek(kind, "nobody").wait()
    assert said.startswith(f"DeadlineExceeded: there was no {what} named 'nobody' within 0.2 s")
    assert f"there are: {'none' if kind == 'channel' else 'seeker'}" in said


def test_a_driver_does_too(cluster: Cluster, seeker: Any) -> None:
    with pytest.raises(DeadlineExceeded, match=r"no channel named 'nobody' within 0.2 s \(RLINF_NAME_TIMEOUT_S\)"):
        Channel.connect("nobody", cluster=cluster)
    with pytest.raises(DeadlineExceeded, match=r"no group named 'nobody' within 0.2 s.*; there are: seeker"):
        WorkerGroup.from_group_name(Plain, "nobody", cluster=cluster)


@pytest.mark.parametrize("kind", SEEK)
def test_a_name_that_was_closed_fails_at_once_until_it_is_there_again(cluster: Cluster, seeker: Any, kind: str) -> None:
    def make() -> Any:
        if kind == "channel":
            return Channel.create("passing", cluster=cluster)
        return Plain.create_group().launch(cluster, name="passing").wait_ready()

    make().close()
    (said,) = seeker.seek(kind, "passing").wait()
    what = "channel" if kind == "channel" else "group"
    assert said == f"ClosedError: {what} 'passing' is closed; a new one of that name is found once it is there"
    again = make()
    if kind in ("channel", "send"):
        assert seeker.seek(kind, "passing").wait() == ["found"]
    again.close()
    with pytest.raises(ClosedError, match="group 'passing' is closed" if kind != "channel" else "channel"):
        (Channel.connect if kind == "channel" else _find)("passing", cluster=cluster)


def _find(name: str, cluster: Cluster) -> Any:
    return WorkerGroup.from_group_name(Plain, name, cluster=cluster)
