"""Reads a weight syncer's options from an RLinf configuration, and resolves the devices and dtypes that they name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final

import torch
from omegaconf import DictConfig, OmegaConf

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async.errors import ConfigError
from rlinf_async.weights.model.manifest import dtype_of

_KINDS: Final = {"bucket": ("bucket_syncer", "BucketWeightSyncer"), "patch": ("patch_syncer", "PatchWeightSyncer")}
_DEVICES: Final = {"bucket": "bucket_device", "patch": "transport_device"}
_ALIASES: Final = {"compression": "compression_algorithm", "init_sync_buckets_size": "init_sync_bucket_size"}
_COMMUNICATION: Final = {
    "use_ring_sync": "use_ring_broadcast",
    "nccl_max_ctas": "accel_max_ctas",
    "nccl_min_ctas": "accel_min_ctas",
}
_PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


def read_syncer(cfg: Any) -> tuple[Any, dict[str, Any], CollectiveGroupOptions | None]:
    """Return the class and arguments of a configuration's syncer, and the communication options or None.

    Raises:
        ValueError: there is no such type.
        ConfigError: an option is unknown.
    """
    plain: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    given: dict[str, Any] = dict(plain or {})
    name = given.pop("type", None)
    if name not in _KINDS:
        raise ValueError(f"Unsupported weight syncer type: {name!r}; there are {', '.join(_KINDS)}")
    module, class_name = _KINDS[name]
    kind = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    sections = {each: given.pop(each, None) or {} for each in _KINDS}
    arguments: dict[str, Any] = {}
    for key, value in (given | sections[name]).items():
        arguments |= {f"{key}_{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    for alias in _ALIASES.keys() & arguments.keys():
        value = arguments.pop(alias)
        arguments.setdefault(_ALIASES[alias], value)
    communication = {ours: arguments.pop(theirs, None) for theirs, ours in _COMMUNICATION.items()}
    options = CollectiveGroupOptions(**{key: value for key, value in communication.items() if value is not None})
    arguments.setdefault(_DEVICES[name], "cuda")  # RLinf's default is the accelerator, too
    known = list(inspect.signature(kind).parameters)
    for key in arguments.keys() - known:
        like = difflib.get_close_matches(key, known, 1)
        proposal = f": {like[0]!r}, perhaps?" if like else ""
        raise ConfigError(f"a {name} syncer has no option {key!r}{proposal} It has {', '.join(known)}")
    return kind, arguments, None if options.is_empty_options() else options


def device_of(name: str | torch.device) -> torch.device:
    """Return the named device, or the CPU on a machine without a GPU, so that one configuration works on both."""
    device = torch.device(name)
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


def precision_of(name: str | torch.dtype | None) -> torch.dtype | None:
    """Return ``torch.bfloat16`` for ``"bf16"`` or ``"bfloat16"``.

    Raises:
        ConfigError: the name is unknown, or does not name a floating-point dtype.
    """
    if name is None:
        return None
    try:
        dtype = name if isinstance(name, torch.dtype) else dtype_of(_PRECISIONS.get(name.lower(), name.lower()))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not dtype.is_floating_point:
        raise ConfigError(f"weights are cast to a floating-point dtype; got {dtype}")
    return dtype
