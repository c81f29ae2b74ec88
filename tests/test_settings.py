"""Settings: environment variables, bounds, errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlinf_async import Cluster, settings
from rlinf_async.errors import ConfigError
from rlinf_async.settings import Setting


@pytest.mark.parametrize("setting", settings.ALL, ids=lambda setting: setting.variable)
def test_a_default_lies_within_its_bounds(setting: Setting) -> None:
    assert setting({}) == setting.default
    assert setting({setting.variable: str(setting.default)}) == setting.default


@pytest.mark.parametrize("text", ["soon", "nan", "-1", "1e99"])
@pytest.mark.parametrize("setting", settings.ALL, ids=lambda setting: setting.variable)
def test_a_value_that_cannot_be_names_variable_value_and_bounds(setting: Setting, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.check({setting.variable: text})
    for part in (
        setting.variable,
        repr(text),
        f"{setting.minimum:.12g}",
        f"{setting.maximum:.12g}",
        f"{setting.default:.12g}",
    ):
        assert part in str(caught.value)


def test_the_documents_list_every_setting() -> None:
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert f"\n{settings.table()}\n\n" in page.read_text() + "\n"


def test_names_end_with_their_units() -> None:
    units = {"bytes", "connections", "events", "hosts", "items", "lines", "runs", "seconds", "spans"}
    assert {setting.unit for setting in settings.ALL} == units


def test_a_cluster_refuses_a_setting_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DIRECT_ACK_S.variable, "soon")
    with pytest.raises(ConfigError, match="RLINF_DIRECT_ACK_S='soon'"):
        Cluster(num_nodes=1)


def test_every_setting_is_read_somewhere() -> None:
    checkout = Path(__file__).parents[1]
    sources = [path for room in ("rlinf_async", "launcher") for path in (checkout / room).rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources)
    names = [setting.variable.removeprefix("RLINF_") for setting in settings.ALL]
    assert [name for name in names if f"settings.{name}" not in text] == []


def test_a_daemon_adopts_the_settings_of_its_driver_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.KEPT_RUNS.variable, "3")
    monkeypatch.delenv(settings.LEASE_S.variable, raising=False)
    settings.adopt({settings.LEASE_S.variable: "7", "PATH": "/of/the/driver"})
    assert (settings.LEASE_S(), settings.KEPT_RUNS()) == (7, 3)
    assert os.environ["PATH"] != "/of/the/driver"
    with pytest.raises(ConfigError, match="RLINF_KEPT_RUNS='none'"):
        settings.adopt({settings.KEPT_RUNS.variable: "none"})
