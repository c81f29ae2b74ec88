"""Hardware of nodes, detected without torch: accelerator families, robots, and kinds registered by users."""

from rlinf_async.hardware import robots as robots
from rlinf_async.hardware.accelerator import (
    REHEARSAL as REHEARSAL,
    AcceleratorFamily as AcceleratorFamily,
    Accelerators as Accelerators,
    AcceleratorType as AcceleratorType,
    is_rehearsal as is_rehearsal,
)
from rlinf_async.hardware.cards import Device as Device
from rlinf_async.hardware.extension import EXTENSION as EXTENSION, load_extension as load_extension
from rlinf_async.hardware.families import (
    FAMILIES as FAMILIES,
    Accelerator as Accelerator,
    find_accelerators as find_accelerators,
    get_family as get_family,
    register_accelerator as register_accelerator,
)
from rlinf_async.hardware.hardware import (
    Hardware as Hardware,
    HardwareConfig as HardwareConfig,
    HardwareInfo as HardwareInfo,
    HardwareResource as HardwareResource,
    NodeHardwareConfig as NodeHardwareConfig,
)
from rlinf_async.hardware.robot import Robot as Robot, RobotConfig as RobotConfig, RobotInfo as RobotInfo
