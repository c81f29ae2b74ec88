"""A syncer as a configuration describes it."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async.errors import ConfigError

_KINDS: Final = {"bucket": ("bucket_syncer", "BucketWeightSyncer"), "patch": ("patch_syncer", "PatchWeightSyncer")}
_ALIASES: Final = {"compression": "compression_algorithm", "init_sync_buckets_size": "init_sync_bucket_size"}
_DEVICES: Final = {"bucket": "bucket_device", "patch": "transport_device"}
_COMMUNICATION: Final = {
    "use_ring_sync": "use_ring_broadcast",
    "nccl_max_ctas": "accel_max_ctas",
    "nccl_min_ctas": "accel_min_ctas",
}


def read(cfg: Any) -> tuple[Any, dict[str, Any], CollectiveGroupOptions | None]:
    """What ``WeightSyncer.create`` makes of a configuration.

    Returns:
        The class, its arguments, and what is said of the communication; None: nothing.

    Raises:
        ValueError: there is no such type.
        ConfigError: an option is not known.
    """
    plain: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    options: dict[str, Any] = dict(plain or {})
    name = options.pop("type", None)
    if name not in _KINDS:
        raise ValueError(f"Unsupported weight syncer type: {name!r}; there are {', '.join(_KINDS)}")
    module, class_name = _KINDS[name]
    kind = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    sections = {each: options.pop(each, None) or {} for each in _KINDS}
    options |= sections[name]
    wishes = {ours: options.pop(theirs) for theirs, ours in _COMMUNICATION.items() if options.get(theirs) is not None}
    arguments = {key: value for key, value in _flat(options).items() if key not in _COMMUNICATION}
    for alias in _ALIASES.keys() & arguments.keys():
        value = arguments.pop(alias)
        arguments.setdefault(_ALIASES[alias], value)
    arguments.setdefault(_DEVICES[name], "cuda")  # as there: the accelerator, or the CPU where there is none
    known = list(inspect.signature(kind).parameters)
    for key in arguments:
        if key not in known:
            like = difflib.get_close_matches(key, known, 1)
            proposal = f": {like[0]!r}, perhaps?" if like else ""
            raise ConfigError(f"a {name} syncer has no option {key!r}{proposal} It has {', '.join(known)}")
    communication = CollectiveGroupOptions(**wishes)
    return kind, arguments, None if communication.is_empty_options() else communication


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in options.items():
        found.update(
            {f"{key}_{below}": v for below, v in value.items()} if isinstance(value, Mapping) else {key: value}
        )
    return found
