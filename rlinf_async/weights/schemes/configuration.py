"""Configuration of a scheme: its options, and what its sender and receiver take from it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from rlinf_async.weights.model.resolve import _resolve_model
from rlinf_async.weights.schemes.sync_options import SyncOptions
from rlinf_async.weights.schemes.weight_strategy import WeightStrategy, _get_strategy
from rlinf_async.weights.transports.transport import TransportBackend


class Configuration(metaclass=abc.ABCMeta):
    """Options of a scheme, its transports, and where it finds the weights of a model."""

    needs_weights: ClassVar[bool] = True
    """Whether to send nothing is a mistake."""

    publishes: ClassVar[bool] = False
    """Whether the weights are packed once, for all workers."""

    def __init__(self, strategy: Any, options: Mapping[str, Any]) -> None:
        self.strategy: str = _get_strategy(strategy).extract_as
        owner = type(self).__name__
        self.options = SyncOptions.of(options, owner)
        self.options.refuse(
            "behind", owner=owner, why="a send is over once its workers have answered: publish() takes it"
        )

    @abc.abstractmethod
    def create_transport(self, pipe_or_context: Any) -> TransportBackend:
        """The way to one worker, or from the sender; what is needed for it, each scheme says."""

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:
        """What ``send(weights)`` sends.

        Args:
            weights: a module, of which the weights are extracted; the path of one in the context; None for the model
                ``model_id`` of the context; or weights, which stay as they are.

        Returns:
            The weights; None where none were given and the context has none.

        Raises:
            ValueError: a path, and no context.
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
            return strategy.extract_weights(_resolve_model(context, model_id))
        except (AttributeError, KeyError):
            pass
        fallback = getattr(context, "_fallback_policy", None) if model_id == "policy" else None
        return None if fallback is None else strategy.extract_weights(fallback)
