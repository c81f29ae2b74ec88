"""``SyncOptions`` holds and checks the options of all schemes, and refuses unsupported options by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from rlinf_async.errors import ConfigError
from rlinf_async.weights.model.naming import Naming, Rename
from rlinf_async.weights.model.shards import ShardOption

_CHOICES: dict[str, tuple[Any, ...]] = {
    "apply": ("copy", "map"),
    "verify": ("off", "sha256"),
    "strict_dtype": (False, True),
}

MOST_SLOTS: Final = 64
"""Limit on slots: each is a file as large as the weights, and slots beyond the number of late receivers stay unused."""


@dataclass(frozen=True)
class SyncOptions:
    """
    Args:
        apply: ``"copy"`` overwrites a receiver's tensors. ``"map"`` remaps them to the memory that the sender has
        written: nothing is copied, and writing to them crashes the process or, on a GPU, changes what other receivers
            see. If the model is not on the sender's GPU, its weights are copied nevertheless. With
            ``DistributedWeightSyncScheme``, tensors are remapped to the memory in which the weights arrived. Weights
            passed as a call's argument are always copied.
        slots: number of versions kept in memory, at most 64; by default 2 for ``"copy"``, 3 for ``"map"``.
        transport_dtype: dtype in which floating-point tensors are sent: a dtype, its name, or a function of (name,
            dtype); None keeps each tensor's dtype.
        behind: for ``publish``: number of earlier versions that may be pending when one is sent, up to 62; by default
            2.
        ack_timeout: seconds within which a receiver must apply an update.
        verify: with ``"sha256"``, receivers hash their models' tensors after applying a version, and the sender
            compares the digests with its own; set it at both ends.
        select: ``"all"``; ``"trainable"``, which omits parameters that do not require a gradient; or a function of
            (name, tensor), which receives a module's parameters themselves.
        strict_dtype: a receiver refuses weights whose dtype differs from its tensors'; by default it casts them, as
            ``copy_`` does, if ``torch.can_cast`` allows it.
        strip_prefix: prefix to remove from this side's tensor names: ``"module."``.
        rename: dict from this side's tensor names to transport names; or a function of these names.
        shard: ``(mesh, placements)`` of a receiver's plain tensors that are shards; or a function of (name, tensor)
            that returns them, or None for a whole tensor."""

    apply: str = "copy"
    slots: int | None = None
    transport_dtype: Any = None
    behind: int | None = None
    ack_timeout: float = 60.0
    verify: str = "off"
    select: str | Callable[..., bool] = "all"
    strict_dtype: bool = False
    strip_prefix: str = ""
    rename: Rename = None
    shard: ShardOption = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name}= is one of {', '.join(map(repr, choices))}; got {value!r}")
        if self.slots is not None and not (isinstance(self.slots, int) and 2 <= self.slots <= MOST_SLOTS):
            raise ConfigError(
                f"slots= is at least 2, because one is read while the other is written, and at most {MOST_SLOTS}; each "
                f"takes as much memory as the weights; got {self.slots!r}"
            )
        if self.behind is not None and not (type(self.behind) is int and 0 <= self.behind <= MOST_SLOTS - 2):
            raise ConfigError(
                f"behind= is a number of versions, from 0 to {MOST_SLOTS - 2}, because each may take as much memory as "
                f"the weights; got {self.behind!r}"
            )
        if not isinstance(self.ack_timeout, (int, float)) or not self.ack_timeout > 0:
            raise ConfigError(f"ack_timeout= takes seconds, more than 0; got {self.ack_timeout!r}")
        if not callable(self.select) and self.select not in ("all", "trainable"):
            raise ConfigError(f"select= is 'all', 'trainable' or a function of (name, tensor); got {self.select!r}")

        self._check_transport_dtype()
        if not isinstance(self.strip_prefix, str):
            raise ConfigError(f"strip_prefix= is the beginning of names, as 'module.'; got {self.strip_prefix!r}")
        is_names = isinstance(self.rename, Mapping) and all(isinstance(each, str) for each in self.rename.values())
        if self.rename is not None and not is_names and not callable(self.rename):
            raise ConfigError(f"rename= is a dict of names, or a function of a name; got {self.rename!r}")
        if self.shard is not None and not callable(self.shard) and len(self.shard) != 2:
            raise ConfigError(f"shard= is (mesh, placements), or a function of (name, tensor); got {self.shard!r}")

    def _check_transport_dtype(self) -> None:
        dtype = self.transport_dtype
        if dtype is None or (callable(dtype) and not isinstance(dtype, torch.dtype)):
            return
        found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            names = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]
            floating = [name for name in names if getattr(torch, name).is_floating_point]
            like = difflib.get_close_matches(dtype, floating, 1, 0.4) if isinstance(dtype, str) else []
            raise ConfigError(
                f"transport_dtype= is a floating-point dtype, its name, or a function of (name, dtype); got {dtype!r}"
                f"{f': {like[0]!r}, perhaps?' if like else ''}"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any], owner: str) -> SyncOptions:
        """Return the options, checked by name.

        Raises:
            ConfigError: an option is unknown; the error suggests a similar one.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                like = difflib.get_close_matches(name, known, 1)
                raise ConfigError(
                    f"{owner} has no option {name!r}{f': {like[0]!r}, perhaps?' if like else ''} "
                    f"It has {', '.join(known)}"
                )
        return cls(**options)

    def refuse_others(self, *honoured: str, owner: str, why: str) -> None:
        """Refuse options that would have no effect.

        Raises:
            ConfigError: an option not in ``honoured`` was given; the error says why it would have no effect.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in honoured and value != field.default:
                raise ConfigError(f"{owner} cannot do {field.name}={value!r}: {why}")

    def refuse(self, name: str, *, owner: str, why: str) -> None:
        """Refuse one option.

        Raises:
            ConfigError: the option was given; the error says why it would have no effect.
        """
        others = (field.name for field in dataclasses.fields(self) if field.name != name)
        self.refuse_others(*others, owner=owner, why=why)

    def for_publisher(self) -> dict[str, Any]:
        """Return the arguments of ``Publisher``."""
        names = ("apply", "slots", "transport_dtype", "ack_timeout", "verify", "select")
        return {**{name: getattr(self, name) for name in names}, "behind": self.behind or 0} | self._named()

    def _named(self) -> dict[str, Naming]:
        return {"naming": Naming(self.strip_prefix, self.rename)}

    def for_subscriber(self) -> dict[str, Any]:
        """Return the arguments of ``Subscriber``."""
        names = ("apply", "verify", "ack_timeout", "strict_dtype", "shard")
        return {name: getattr(self, name) for name in names} | self._named()
