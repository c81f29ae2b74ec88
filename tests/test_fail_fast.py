"""With ``fail_fast`` a plain ``wait()`` ends when another call has failed and nothing awaits that, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, ConfigError, NodePlacementStrategy, UnobservedFailure, settings, wait_all
from rlinf_async._cluster.launch_config import fail_fast_wanted, read_config
from rlinf_async._waits import unobserved_errors as errors
from tests._support.until import until
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

SOON = 0.1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=1, log_to_driver=False, fail_fast=True) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.UNOBSERVED_ERROR_S.variable, str(SOON))


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="pair").wait_ready()
    yield group
    group.close()
    for error in cluster._client.unobserved.pending():
        cluster._client.unobserved.observed(error.cause)


def is_due() -> bool:
    return any(error.is_due for account in errors.ending_waits for error in account.pending())


def test_a_wait_ends_with_the_error_of_another_call_as_its_cause(pair: Any) -> None:
    waiting, failing = pair[0].sleep(60), pair[1].block_and_fail(0.3)
    since = time.monotonic()
    with pytest.raises(
        UnobservedFailure, match=r"pair.sleep\(\).* was ended: .*pair.block_and_fail\(\).*as told"
    ) as caught:
        waiting.wait()
    assert time.monotonic() - since < 20
    assert isinstance(caught.value.__cause__, ValueError)
    assert "from rank 1 of group 'pair'" in "\n".join(caught.value.__cause__.__notes__)
    assert not waiting.done()
    waiting.cancel()
    del failing


def test_a_wait_that_begins_when_the_error_is_due_ends_at_once_and_the_next_one_goes_on(pair: Any) -> None:
    failing, waiting = pair[1].fail([1]), pair[0].sleep(1)
    until(is_due)
    with pytest.raises(UnobservedFailure, match="as told"):
        waiting.wait()
    assert waiting.wait() == [1]
    del failing


@pytest.mark.parametrize("way", ["channel", "stream", "part", "outcomes", "group"])
def test_every_plain_wait_of_the_users_ends(cluster: Cluster, pair: Any, way: str) -> None:
    channel = Channel.create(f"fail-fast-{way}")
    ways: dict[str, Callable[[], Any]] = {
        "channel": channel.get,
        "stream": lambda: list(pair[0].count_slowly(60)),
        "part": lambda: pair[0].sleep(60)[0].wait(),
        "outcomes": lambda: pair[0].sleep(60).outcomes().wait(),
        "group": lambda: cluster.find_group(Plain, "there is none"),
    }
    pair[1].fail([1])
    with pytest.raises(UnobservedFailure, match="as told"):
        ways[way]()
    channel.close()


def test_a_handle_on_which_somebody_waits_is_theirs(pair: Any) -> None:
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            failing.wait()
        except ValueError as error:
            raised.append(error)

    failing = pair[1].block_and_fail(0.2)
    thread = threading.Thread(target=wait)
    thread.start()
    assert pair[0].sleep(0.2 + 5 * SOON).wait() == [0.2 + 5 * SOON]
    thread.join()
    assert len(raised) == 1
    with pytest.raises(ValueError, match="as told"):
        wait_all(pair[0].sleep(60), pair[1].block_and_fail(0.1))


def test_a_wait_with_a_timeout_and_the_clusters_own_go_on(cluster: Cluster, pair: Any) -> None:
    pair[1].fail([1])
    until(is_due)
    assert pair[0].sleep(0.2).wait(30) == [0.2]
    assert "pair" in cluster.status()["groups"]
    pair.close()
    assert "pair" not in cluster.status()["groups"]


def test_it_is_off_by_default(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "ending_waits", set())
    pair[1].fail([1])
    assert pair[0].sleep(5 * SOON).wait() == [5 * SOON]


# --- how it is said -------------------------------------------------------------------------------------------------


def test_the_script_goes_before_the_variable_and_that_before_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("cluster:\n  num_nodes: 1\n  fail_fast: true\n")
    on, off = read_config(str(path)), read_config({"fail_fast": False})
    assert not fail_fast_wanted(None, None, {})
    assert fail_fast_wanted(None, on, {})
    assert not fail_fast_wanted(None, off, {})
    assert not fail_fast_wanted(None, on, {"RLINF_FAIL_FAST": "0"})
    assert fail_fast_wanted(None, off, {"RLINF_FAIL_FAST": "yes"})
    assert not fail_fast_wanted(False, on, {"RLINF_FAIL_FAST": "1"})
    assert fail_fast_wanted(True, off, {})


def test_a_value_that_cannot_be_names_place_value_and_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("cluster:\n  num_nodes: 1\n  fail_fast: perhaps\n")
    with pytest.raises(ConfigError, match=r"config.yaml:3: cluster.fail_fast: .*must be true or false, got 'perhaps'"):
        read_config(str(path))
    with pytest.raises(ConfigError, match=r"fail_fast= of Cluster\(\) takes True, False, or None .* got 'yes'"):
        Cluster(fail_fast="yes")  # type: ignore[arg-type]
    monkeypatch.setenv("RLINF_FAIL_FAST", "perhaps")
    with pytest.raises(ConfigError, match=r"RLINF_FAIL_FAST='perhaps' in the environment .* write 1 or 0"):
        Cluster()
