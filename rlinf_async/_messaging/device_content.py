"""Message bodies with GPU memory (``DevicePayload``, ``DeviceContent``), sent over a GPU link or copied to the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf_async._core import codec
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.payload import pack_body
from rlinf_async._messaging.message_content import Content, Payload, encode
from rlinf_async._transports.shared_memory import SharedSegment

if TYPE_CHECKING:
    import torch

    from rlinf_async._transports.devices.own_gpu import OwnGpu


class DevicePayload(Payload):
    """An outgoing value with buffers in GPU memory, and its copy in CPU memory, made on first request.

    Both forms share one head, so the value is pickled once. ``encoded`` may also be the flat bytes of one tensor.
    """

    is_on_gpu = True

    def __init__(self, kind: int, about: Any, encoded: Encoded | torch.Tensor, own: OwnGpu) -> None:
        self.kind = kind
        self.about = about
        self.nbytes = encoded.nbytes
        self._source = encoded
        self._own = own
        self._written = own.mark()
        self._plain: Payload | None = None

    def make_plain(self) -> Payload:
        """Return the copy in CPU memory, made on the first call. Raise RuntimeError if CUDA fails."""
        if self._plain is None:
            self._own.follow(self._written)
            source, to_cpu = self._source, self._own.to_cpu
            if isinstance(source, Encoded):
                views = [view if isinstance(view, memoryview) else to_cpu(view) for view in source.buffers]
                self._plain = Payload(self.kind, self.about, source.replace(views))
            else:
                self._plain = Payload(self.kind, self.about, to_cpu(source))
        return self._plain

    def pack(self) -> tuple[bytes | int, Sequence[int]]:
        return self.make_plain().pack()

    @property
    def has_small_head(self) -> bool:
        return self.make_plain().has_small_head

    def parts(self) -> tuple[bytes, list[memoryview]]:
        return self.make_plain().parts()

    def copy(self) -> bytes | memoryview:
        return self.make_plain().copy()

    # -- from GPU to GPU ----------------------------------------------------------------------------------------

    @property
    def rest(self) -> int:
        """Return the number of content bytes that are not in GPU memory."""
        if not isinstance(self._source, Encoded):
            return 0
        return self.nbytes - sum(self._source.buffers[place].nbytes for place in self.places)

    @property
    def places(self) -> list[int]:
        """Return the indices of the buffers that are on the GPU."""
        if not isinstance(self._source, Encoded):
            return [0]
        return [place for place, buffer in enumerate(self._source.buffers) if not isinstance(buffer, memoryview)]

    def pack_rest(self) -> tuple[bytes | int, Sequence[int]]:
        """Pack the buffers that are not on the GPU, like ``pack``."""
        source = self._source
        if not isinstance(source, Encoded):
            return b"", ()
        return pack_body(source.replace([view for view in source.buffers if isinstance(view, memoryview)]))

    def tensors(self) -> list[torch.Tensor]:
        """Return the GPU buffers for a link; the caller's CUDA stream first waits until they have been written."""
        self._own.follow(self._written)
        if not isinstance(self._source, Encoded):
            return [self._source]
        buffers: Sequence[Any] = self._source.buffers
        return [buffers[place] for place in self.places]


class DeviceContent(Content):
    """Content from a GPU link: ``places`` are the indices of ``tensors``; ``rest`` arrived in the frame."""

    __slots__ = ("_places", "_tensors")

    def __init__(self, rest: Content, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(rest.body)
        self._places = places
        self._tensors = tensors

    def value(self) -> Any:
        body = self.body.open() if isinstance(self.body, SharedSegment) else self.body
        return codec.decode_among(body, zip(self._places, self._tensors, strict=True))

    def memory(self) -> torch.Tensor:  # type: ignore[override]
        return self._tensors[0]


def encode_on(own: OwnGpu, value: Any, piggyback: Any) -> Payload:
    """Like ``encode``, for a value that may contain tensors on the given GPU."""

    def make(kind: int, about: Any, encoded: Encoded | bytes) -> Payload:
        if isinstance(encoded, bytes) or all(isinstance(view, memoryview) for view in encoded.buffers):
            return Payload(kind, about, encoded)
        return DevicePayload(kind, about, encoded, own)

    return encode(value, piggyback, own.keeps, make)
