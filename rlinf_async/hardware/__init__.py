"""What nodes have: accelerators of every maker, robots, and what users register of their own; no torch."""

from . import robots
from .accelerator import REHEARSAL, AcceleratorFamily, Accelerators, AcceleratorType, is_rehearsal
from .cards import Device
from .extension import EXTENSION, load_extension
from .families import FAMILIES, Accelerator, find_accelerators, get_family, register_accelerator
from .hardware import Hardware, HardwareConfig, HardwareInfo, HardwareResource, NodeHardwareConfig
from .robot import Robot, RobotConfig, RobotInfo

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
