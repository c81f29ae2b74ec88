"""Maps GPUs to EGL device numbers for rendering; runs as a subprocess, because EGL loads the graphics driver.

``python -m rlinf_async.hardware.egl 0 GPU-5a3e`` prints a JSON object that maps each device id to its EGL number. EGL
numbers all devices of a machine in its own order, so run this on the machine that has the GPUs.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async.hardware.cards import Card, find_card
from rlinf_async.hardware.nvidia import read_cards

CUDA_DEVICE: Final = 0x323A  # EGL_CUDA_DEVICE_NV
_MAX_DEVICES: Final = 64


def rendering_devices(ids: Sequence[str], cards: Sequence[Card], ordinals: Sequence[int | None]) -> dict[str, int]:
    """Return a dict that maps device ids to EGL device numbers, omitting devices that EGL does not list.

    Args:
        ids: entries of a visibility variable.
        cards: the machine's GPUs.
        ordinals: for each EGL device, its GPU index; None for other vendors' devices.
    """
    numbers = {index: number for number, index in enumerate(ordinals) if index is not None}
    found = {id_: find_card(id_, cards) for id_ in ids}
    return {id_: numbers[card.index] for id_, card in found.items() if card is not None and card.index in numbers}


def read_ordinals(library: Any) -> list[int | None]:
    """Return each EGL device's GPU index; empty if EGL lacks the extensions that list devices."""
    library.eglGetProcAddress.restype = ctypes.c_void_p
    devices_address = library.eglGetProcAddress(b"eglQueryDevicesEXT")
    attribute_address = library.eglGetProcAddress(b"eglQueryDeviceAttribEXT")
    if not devices_address or not attribute_address:
        return []
    count = ctypes.c_int(0)
    devices = (ctypes.c_void_p * _MAX_DEVICES)()
    query_devices = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(devices_address)
    if not query_devices(_MAX_DEVICES, ctypes.addressof(devices), ctypes.addressof(count)):
        return []
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(attribute_address)
    ordinals: list[int | None] = []
    for device in devices[: count.value]:
        ordinal = ctypes.c_ssize_t(-1)
        answered = query(device, CUDA_DEVICE, ctypes.addressof(ordinal))
        ordinals.append(ordinal.value if answered and ordinal.value >= 0 else None)
    return ordinals


def main() -> None:
    # EGL answers with CUDA's numbers, which equal the driver's only in this order and with no device hidden.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        ordinals = read_ordinals(ctypes.CDLL("libEGL.so.1"))
    except OSError:  # the machine has no graphics libraries
        ordinals = []
    print(json.dumps(rendering_devices(sys.argv[1:], read_cards(), ordinals)))  # noqa: T201 (the answer)


if __name__ == "__main__":
    main()
