"""The pages about weights: their names exist, their tables are complete.  ``test_guides.py`` runs their programs."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import rlinf_async.torchrl
from rlinf_async.weights.following import Following
from rlinf_async.weights.publication import Publication
from rlinf_async.weights.schemes.sync_options import SyncOptions

CHECKOUT = Path(__file__).resolve().parents[1]
GUIDE = (CHECKOUT / "docs" / "torchrl.md").read_text()
PAGES = (CHECKOUT / "docs" / "weights.md").read_text() + GUIDE

TORCHRL = [
    "TransportBackend",
    "MPTransport",
    "SharedMemTransport",
    "RayTransport",
    "RayActorTransport",
    "RPCTransport",
    "DistributedTransport",
    "WeightStrategy",
    "WeightSender",
    "WeightReceiver",
    "RayModuleTransformSender",
    "RayModuleTransformReceiver",
    "WeightSyncScheme",
    "MultiProcessWeightSyncScheme",
    "SharedMemWeightSyncScheme",
    "NoWeightSyncScheme",
    "RayWeightSyncScheme",
    "RayModuleTransformScheme",
    "RPCWeightSyncScheme",
    "DistributedWeightSyncScheme",
]
"""``__all__`` of TorchRL's module."""


def read_table(head: str) -> list[list[str]]:
    rows, inside = [], False
    for line in GUIDE.splitlines():
        if line == head:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|--"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_every_name_of_torchrls_is_mapped_to_one_that_is_the_same_class() -> None:
    rows = {theirs.strip("`"): ours.strip("`") for theirs, ours, _ in read_table("| TorchRL | here | note |")}
    assert list(rows) == TORCHRL
    for theirs, ours in rows.items():
        assert getattr(rlinf_async, theirs) is getattr(rlinf_async, ours)
        assert {theirs, ours} <= {*rlinf_async.torchrl.__all__, *rlinf_async.__all__}


@pytest.mark.parametrize("name", rlinf_async.torchrl.__all__)
def test_what_stands_with_torchrls_names_is_in_the_guide(name: str) -> None:
    assert f"`{name}`" in GUIDE


def test_every_scheme_and_every_option_that_it_names_is_there() -> None:
    for name in re.findall(r"`(\w+(?:Scheme|Transport|Sender|Receiver|Strategy|Report|Exceeded))`", PAGES):
        assert hasattr(rlinf_async, name), name
    for name in re.findall(r"receiver\.(\w+)", GUIDE):
        assert hasattr(rlinf_async.WeightReceiver, name), name
    for name in re.findall(r"sender\.(\w+)", GUIDE):
        assert hasattr(rlinf_async.WeightSender, name), name


def test_every_difference_has_a_test_that_exists() -> None:
    for what, _, _, test in read_table("| what | TorchRL | here | test |"):
        path, _, name = test.strip("`").partition("::")
        functions = [node.name for node in ast.parse((CHECKOUT / path).read_text()).body if hasattr(node, "name")]
        assert name in functions, f"{what}: {path} has no {name}"


def test_every_member_of_publications_and_followings_that_it_names_is_there() -> None:
    members = {*dir(Publication), *dir(Following)}
    assert set(re.findall(r"\bweights\.(?!md\b)(\w+)", PAGES)) <= members
    (options,) = re.findall(r"### Options\n(.*?)\n###", PAGES, re.DOTALL)
    assert set(re.findall(r"^\| `(\w+)=", options, re.MULTILINE)) == {field.name for field in fields(SyncOptions)}


def test_the_readme_leads_to_them() -> None:
    assert "(docs/weights.md)" in (CHECKOUT / "README.md").read_text()
    assert "(torchrl.md)" in PAGES


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/.-]+?)(?:::\w+)?`", PAGES))))
def test_every_file_that_it_names_is_there(path: str) -> None:
    assert (CHECKOUT / path).is_file()
