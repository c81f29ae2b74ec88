"""``CollectiveGroupOptions``: RLinf's NCCL settings, validated; they affect users' process groups, not ``send``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rlinf_async.errors import ConfigError

_RANGES = {"accel_cluster_size": (0, 8), "accel_max_ctas": (1, 32), "accel_min_ctas": (1, 32)}


@dataclass(frozen=True)
class CollectiveGroupOptions:
    """NCCL settings, under the names that RLinf's configurations and calls use.

    ``AcceleratorUtil.get_accel_pg_options`` applies them, except ``use_ring_broadcast``, to process groups that user
    code creates. This framework's own transfers validate and otherwise ignore them.

    Attributes:
        accel_cluster_size: thread blocks per cluster, 0 to 8 (NCCL's ``cga_cluster_size``).
        accel_max_ctas, accel_min_ctas: maximum and minimum number of thread blocks, 1 to 32.
        is_high_priority_stream: run on a high-priority CUDA stream.
        use_ring_broadcast: forward a broadcast from receiver to receiver.

    Raises:
        ConfigError: a value is out of its range, or the maximum is below the minimum.
    """

    accel_cluster_size: int | None = None
    accel_max_ctas: int | None = None
    accel_min_ctas: int | None = None
    is_high_priority_stream: bool = False
    use_ring_broadcast: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and least <= value <= most):
                raise ConfigError(f"{name} must be a number from {least} to {most}, got {value!r}")
        if (self.accel_max_ctas or 32) < (self.accel_min_ctas or 1):
            raise ConfigError(f"accel_max_ctas={self.accel_max_ctas} is less than accel_min_ctas={self.accel_min_ctas}")

    def is_empty_options(self) -> bool:
        """True if every setting has its default value."""
        return all(getattr(self, field.name) == field.default for field in fields(self))
