"""``WeightStrategy``: extracts a model's weights as a state dict or a TensorDict, and applies them to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from rlinf_async.weights.links.socket_link import Notice
from rlinf_async.weights.model.param_tree import (
    EXTRA_STATE,
    ParamTree,
    Path,
    has_extra_state,
    is_tensordict,
    key_path,
    path_of,
)
from rlinf_async.weights.model.writing import plan_update


class WeightStrategy:
    """Extracts weights from models and applies them to models (TorchRL's interface).

    Args:
        extract_as: ``"tensordict"`` or ``"state_dict"``; ``apply_weights`` recognises the form of its weights. If the
            package tensordict is not installed, nested dicts replace TensorDicts.
        keep_vars: as for torch's ``state_dict``: include the parameters themselves, which show whether they are
            trained, instead of detached tensors.
        strict_dtype: ``apply_weights`` refuses dtypes that differ from the destination's instead of casting.

    Raises:
        ValueError: ``extract_as`` has another value.
    """

    def __init__(
        self,
        extract_as: Literal["tensordict", "state_dict"] = "tensordict",
        *,
        keep_vars: bool = False,
        strict_dtype: bool = False,
    ) -> None:
        if extract_as not in ("tensordict", "state_dict"):
            raise ValueError(f"extract_as must be 'tensordict' or 'state_dict', got {extract_as}")
        self.extract_as: str = extract_as
        self._keep_vars = keep_vars
        self._strict_dtype = strict_dtype

    def __repr__(self) -> str:
        return f"WeightStrategy({self.extract_as!r})"

    def extract_weights(self, source: Any) -> Any:
        """Return a source's weights without copying them.

        =============  ========================================  =================================================
        source         as ``"tensordict"``                       as ``"state_dict"``
        =============  ========================================  =================================================
        module         a TensorDict of parameters, all buffers   ``state_dict()``: dotted keys, persistent buffers
                       and extra state                           only
        TensorDict     as it is                                  nested dicts
        dict           a TensorDict with the same keys           as it is
        =============  ========================================  =================================================

        Raises:
            ValueError: the source has an unsupported type.
        """
        if self.extract_as == "tensordict":
            return _as_tensordict(source)
        if isinstance(source, ParamTree):
            return source.to_state_dict()
        if is_tensordict(source):
            return source.to_dict()
        if isinstance(source, nn.Module):
            return source.state_dict(keep_vars=True) if self._keep_vars else source.state_dict()
        if isinstance(source, dict):
            return source
        raise ValueError(f"Unsupported source type for state_dict extraction: {type(source)}")

    def apply_weights(self, destination: Any, weights: Any) -> None:
        """Write weights into a destination in place, or raise and write nothing.

        Dtypes are cast, values move between devices, parameters stay the same objects, and tied tensors are written
        once. Keys without weights are unchanged.

        Args:
            destination: a module, a TensorDict, or a dict of tensors with dotted or nested keys.
            weights: a TensorDict, or a dict with dotted or nested keys. None has no effect, and neither does a notice,
                whose weights the receiver applies.

        Raises:
            WeightMismatch: (a KeyError) a key is unknown, or a shape or the kind of a dtype differs.
            ValueError: the destination or the weights have an unsupported type.
        """
        if not isinstance(weights, Notice):
            plan_update(destination, weights, strict_dtype=self._strict_dtype).write()


def _get_strategy(strategy: Literal["tensordict", "state_dict"], **options: bool) -> WeightStrategy:
    """Return a strategy by name; raise ValueError for an unknown name."""
    if strategy not in ("tensordict", "state_dict"):
        raise ValueError(f"Unknown strategy: {strategy}. Must be 'tensordict' or 'state_dict'.")
    return WeightStrategy(strategy, **options)


def _as_tensordict(source: Any) -> Any:
    if is_tensordict(source):
        return source
    kind = _tensordict()
    if isinstance(source, nn.Module):
        return _nested(source) if kind is None else _of_module(source, kind)
    if isinstance(source, dict):
        return source if kind is None else kind(_without_modules(source, kind), batch_size=[])
    if isinstance(source, ParamTree):
        return source.to_nested() if kind is None else source.to_tensordict()
    raise ValueError(f"Unsupported source type for TensorDict extraction: {type(source)}")


def _of_module(module: nn.Module, kind: Any) -> Any:
    from tensordict import NonTensorData

    found = kind.from_module(module)
    if states := _extra_states(module):
        with found.unlock_():
            for path, state in states.items():
                found.set(path, NonTensorData(state))
    return found


def _extra_states(module: nn.Module) -> dict[Path, Any]:
    parts = module.named_modules(remove_duplicate=False)
    return {
        (*(path_of(name) if name else ()), EXTRA_STATE): part.get_extra_state()
        for name, part in parts
        if has_extra_state(part)
    }


def _without_modules(source: Mapping[Any, Any], kind: Any) -> dict[Any, Any]:
    """Return the source with each module, which would otherwise count as a value, replaced by a TensorDict."""
    found: dict[Any, Any] = {}
    for key, value in source.items():
        key_path(key)
        if isinstance(value, nn.Module) and not is_tensordict(value):
            found[key] = _of_module(value, kind)
        else:
            found[key] = _without_modules(value, kind) if isinstance(value, dict) else value
    return found


def _tensordict() -> Any:
    try:
        from tensordict import TensorDict
    except ImportError:
        return None
    return TensorDict


def _nested(module: nn.Module) -> dict[str, Any]:
    found: dict[Any, Any] = dict(module.named_parameters(remove_duplicate=False))
    found |= module.named_buffers(remove_duplicate=False)
    return ParamTree.of(found | _extra_states(module)).to_nested()
