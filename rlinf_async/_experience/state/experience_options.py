"""``ExperienceOptions``: the bounds and rules of one experience, in the form sent to its daemon."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

Order = Literal["oldest", "newest"]
Short = Literal["drop", "take"]

ORDERS: Final = ("oldest", "newest")
SHORTS: Final = ("drop", "take")


@dataclass(frozen=True)
class ExperienceOptions:
    """Options of an experience, documented by ``Experience.create``.

    Attributes:
        group: number of samples in a complete group.
        lease_s, group_timeout_s: time limits in seconds; 0 means no limit.
        maxsize, max_bytes: bounds for all samples together; 0 means no bound or the daemon's default.
        durable: absolute path of the store on the experience's node; empty for none.
        of: the group whose publications set the trainer's version; empty for none.
    """

    group: int = 1
    max_staleness: int = 2
    lease_s: float = 600.0
    maxsize: int = 0
    max_bytes: int = 0
    order: Order = "oldest"
    group_timeout_s: float = 0.0
    short_groups: Short = "drop"
    durable: str = ""
    of: str = ""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> ExperienceOptions:
        """Create options from another process's data.

        Raises:
            ValueError: an option is unknown or of the wrong type.
        """
        defaults = {each.name: each.default for each in fields(cls)}
        for name, value in data.items():
            if type(value) is not type(defaults.get(name)):
                raise ValueError(f"an experience has no option {name}={value!r}; its options are {', '.join(defaults)}")
        return cls(**data)
