"""Weights that are delivered by calling ``update_policy_weights_`` of a worker."""

from __future__ import annotations

from typing import Any

from rlinf_async.weights.transports.calls import CallTransport, method_of, told


class WorkerTransport(CallTransport):
    """The way to one worker that has a method ``update_policy_weights_(policy_or_weights)`` (TorchRL's RayTransport).

    If that has a parameter ``version`` too, it is told it, and may pass both on to ``receiver.apply_weights``.
    ``model_id`` is not forwarded: that worker knows its model.  What the method raises is raised by ``send_weights``
    and ``wait_ack``.

    Args:
        remote_collector: the worker: a group of one rank, ``group[3]``, or any object with that method.  Without one,
            sending does nothing.
        tensor_transport: for callers of TorchRL's; where tensors travel is the framework's choice.
        timeout: seconds that the worker has to take the weights.
    """

    def __init__(
        self, remote_collector: Any = None, tensor_transport: str = "object_store", *, timeout: float | None = 60.0
    ) -> None:
        super().__init__(timeout)
        self._remote_collector = remote_collector
        self._tensor_transport = tensor_transport

    def __repr__(self) -> str:
        return f"<WorkerTransport to {self._remote_collector!r}>"

    def _describe(self) -> str:
        return f"update_policy_weights_() of {self._remote_collector!r}"

    @property
    def callee(self) -> Any:
        return self._remote_collector

    def call(self, callee: Any, weights: Any, version: int | None = None) -> Any:
        more = told(method_of(callee, "update_policy_weights_"), version)
        return callee.update_policy_weights_(policy_or_weights=weights, **more)


RayTransport = WorkerTransport
"""TorchRL's name."""
