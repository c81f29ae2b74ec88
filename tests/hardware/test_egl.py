"""EGL's numbers of the GPUs: read through the two functions that list devices, matched with the driver's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from rlinf_async.hardware.cards import Card
from rlinf_async.hardware.egl import CUDA_DEVICE, read_ordinals, rendering_devices

CARDS = [Card(0, "GPU-aa", "H200"), Card(1, "GPU-bb", "H200", ("MIG-1",))]


class FakeEgl:
    """A library with real function pointers; ``ordinals`` are the CUDA numbers of its devices, None for Mesa's."""

    def __init__(self, ordinals: list[int | None], lists_devices: bool = True) -> None:
        def query_devices(most: int, devices: int, count: int) -> int:
            array = (ctypes.c_void_p * most).from_address(devices)
            for number in range(len(ordinals)):
                array[number] = 0x1000 + number
            ctypes.c_int.from_address(count).value = len(ordinals)
            return 1

        def query_attribute(device: int, attribute: int, value: int) -> int:
            ordinal = ordinals[device - 0x1000]
            if attribute != CUDA_DEVICE or ordinal is None:
                return 0
            ctypes.c_ssize_t.from_address(value).value = ordinal
            return 1

        kind = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        attribute_kind = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._functions: dict[bytes, Any] = {
            b"eglQueryDevicesEXT": kind(query_devices),
            b"eglQueryDeviceAttribEXT": attribute_kind(query_attribute),
        }
        self._lists_devices = lists_devices
        self.eglGetProcAddress = self._Lookup(self)

    class _Lookup:
        restype: Any = None

        def __init__(self, library: FakeEgl) -> None:
            self._library = library

        def __call__(self, name: bytes) -> int | None:
            found = self._library._functions.get(name) if self._library._lists_devices else None
            return ctypes.cast(found, ctypes.c_void_p).value if found is not None else None


def test_every_device_of_the_library_is_asked_which_gpu_it_is() -> None:
    assert read_ordinals(FakeEgl([1, None, 0])) == [1, None, 0]
    assert read_ordinals(FakeEgl([])) == []
    assert read_ordinals(FakeEgl([0], lists_devices=False)) == []


@pytest.mark.parametrize(
    ("ids", "ordinals", "found"),
    [
        (["0", "1"], [1, 0], {"0": 1, "1": 0}),
        (["GPU-b", "MIG-1"], [None, 0, 1], {"GPU-b": 2, "MIG-1": 2}),
        (["1", "9"], [0], {}),
        ([], [0], {}),
    ],
)
def test_a_worker_is_told_the_number_of_its_own_gpu(
    ids: list[str], ordinals: list[int | None], found: dict[str, int]
) -> None:
    assert rendering_devices(ids, CARDS, ordinals) == found
