"""``Configuration``: a scheme's options, and the lookup of its sender's and receiver's models by path."""

from __future__ import annotations

import abc
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from torch import nn

from rlinf_async.weights.schemes.sync_options import SyncOptions
from rlinf_async.weights.schemes.weight_strategy import WeightStrategy, _get_strategy
from rlinf_async.weights.transports.transport import TransportBackend


class Configuration(metaclass=abc.ABCMeta):
    """The options of a scheme, its transports, and the lookup of a model's weights."""

    needs_weights: ClassVar[bool] = True
    """True if a send without weights is an error."""

    publishes: ClassVar[bool] = False
    """True if the weights are packed once for all workers."""

    def __init__(self, strategy: Any, options: Mapping[str, Any]) -> None:
        self.strategy: str = _get_strategy(strategy).extract_as
        owner = type(self).__name__
        self.options = SyncOptions.of(options, owner)
        self.options.refuse(
            "behind", owner=owner, why="a send is over once its workers have answered: publish() takes it"
        )

    @abc.abstractmethod
    def create_transport(self, pipe_or_context: Any) -> TransportBackend:
        """Create the sender's transport to one worker, or a worker's transport; each scheme documents the argument."""

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:
        """Return the weights that ``send(weights)`` sends.

        Args:
            weights: a module, whose weights are extracted; a module's path in the context; None for the context's model
                ``model_id``; or extracted weights, which are returned unchanged.

        Returns:
            The weights; None if none were given and the context has no model.

        Raises:
            ValueError: a path was given without a context.
        """
        if weights is None:
            return None if context is None else self._weights_of(context, model_id, strategy)
        if isinstance(weights, nn.Module):
            return strategy.extract_weights(weights)
        if isinstance(weights, str):
            if context is None:
                raise ValueError(f"Cannot resolve string reference '{weights}' without context")
            return strategy.extract_weights(_resolve_model(context, weights))
        return weights

    def _weights_of(self, context: Any, model_id: str, strategy: WeightStrategy) -> Any:
        try:
            model = _resolve_model(context, model_id)
        except (AttributeError, KeyError):
            model = getattr(context, "_fallback_policy", None) if model_id == "policy" else None
            if model is None:
                return None
        return strategy.extract_weights(model)


def held(thing: Any) -> Callable[[], Any]:
    """Return a function that returns the object, or None once it is gone; objects without weak references are kept
    alive."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


_DOT: Final = re.compile(r"\.(?![^\[]*\])")  # dots outside brackets
_QUOTED: Final = re.compile(r"""(['"])(.*)\1""")


def _resolve_model(context: Any, model_id: str) -> Any:
    """Return the object at a path.

    Args:
        context: object with the path's first attribute.
        model_id: attributes separated by dots, each followed by any number of bracketed integers or quoted keys.

    Raises:
        AttributeError: an attribute does not exist; the error names the attribute and its object.
        IndexError, KeyError: an index or key does not exist.
        ValueError: an index is neither an integer nor quoted.
    """
    parts = _DOT.split(model_id)
    found = context
    for i, part in enumerate(parts):
        name, *indices = part.split("[")
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise AttributeError(
                f"Attribute {name} from {parts[: i + 1]} not found in {'.'.join(parts[:i])}={found}"
            ) from error
        for index in indices:
            found = found[_index(index, model_id)]
    return found


def _index(text: str, model_id: str) -> int | str:
    inner = text.removesuffix("]")
    if quoted := _QUOTED.fullmatch(inner):
        return quoted[2]
    try:
        return int(inner)
    except ValueError:
        raise ValueError(f"[{text} in {model_id!r} is neither an integer nor a quoted key") from None
