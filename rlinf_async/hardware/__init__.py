"""Hardware of nodes: accelerators of every maker, robots, and what users register of their own; no torch."""

from rlinf_async.hardware import robots
from rlinf_async.hardware.accelerator import REHEARSAL, AcceleratorFamily, Accelerators, AcceleratorType, is_rehearsal
from rlinf_async.hardware.cards import Device
from rlinf_async.hardware.extension import EXTENSION, load_extension
from rlinf_async.hardware.families import FAMILIES, Accelerator, find_accelerators, get_family, register_accelerator
from rlinf_async.hardware.hardware import Hardware, HardwareConfig, HardwareInfo, HardwareResource, NodeHardwareConfig
from rlinf_async.hardware.robot import Robot, RobotConfig, RobotInfo

__all__ = [
    "EXTENSION",
    "FAMILIES",
    "REHEARSAL",
    "Accelerator",
    "AcceleratorFamily",
    "AcceleratorType",
    "Accelerators",
    "Device",
    "Hardware",
    "HardwareConfig",
    "HardwareInfo",
    "HardwareResource",
    "NodeHardwareConfig",
    "Robot",
    "RobotConfig",
    "RobotInfo",
    "find_accelerators",
    "get_family",
    "is_rehearsal",
    "load_extension",
    "register_accelerator",
    "robots",
]
