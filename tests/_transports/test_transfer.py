"""Division of buffers into chunks: sender and receiver agree."""

from __future__ import annotations

import torch
from hypothesis import given, settings, strategies as st

from rlinf_async._transports.memory import WarmMemory
from rlinf_async._transports.transfer import CHUNK_BYTES, MemoryReceive, MemorySend

SIZES = st.lists(
    st.one_of(
        st.integers(0, 300),
        st.integers(65_500, 65_600),
        st.sampled_from([CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES]),
    ),
    max_size=12,
)


def fill(size: int, salt: int) -> bytes:
    return bytes([salt % 251 + 1]) * size


@given(sizes=SIZES, read_only=st.booleans())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_parcels_copied_one_by_one_carry_every_buffer_to_its_place(sizes: list[int], read_only: bool) -> None:
    contents = [fill(size, salt) for salt, size in enumerate(sizes)]
    sending = MemorySend(1, [memoryview(each if read_only else bytearray(each)) for each in contents])
    receiving = MemoryReceive(1, sizes, WarmMemory())
    receiving.allocate()
    chunks = sending.chunks()
    assert [len(chunk) for chunk in chunks] == [len(chunk) for chunk in receiving.chunks]
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)
    for target, chunk in zip(receiving.chunks, chunks, strict=True):
        target.copy_(chunk)
    buffers = receiving.buffers
    receiving.complete()
    assert [bytes(each) for each in receiving.wait()] == contents
    assert buffers == receiving.wait()


def test_large_buffers_are_sent_from_where_they_are_and_small_ones_in_one_parcel() -> None:
    large, small = bytearray(CHUNK_BYTES), [bytearray(100) for _ in range(50)]
    chunks = MemorySend(1, [*map(memoryview, small), memoryview(large)]).chunks()
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, 50 * 128]
    assert chunks[0].data_ptr() == torch.frombuffer(large, dtype=torch.uint8).data_ptr()


def test_every_buffer_stands_where_any_tensor_can() -> None:
    sizes = [1, 8, 63, 65, 70_000, 7]
    receiving = MemoryReceive(1, sizes)
    receiving.allocate()
    offsets = [torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() for buffer in receiving.buffers]
    small = [offset for offset, size in zip(offsets, sizes, strict=True) if size < 65_536]
    assert {(offset - small[0]) % 64 for offset in small} == {0}


def test_a_transfer_says_what_it_is() -> None:
    assert MemoryReceive(7, [3 << 20])._describe() == "transfer 7 [3.0 MiB] from worker to worker"
