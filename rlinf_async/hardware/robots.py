"""Built-in robots (Franka, GimArm, DOS-W1, Turtle2): configuration keys, info classes, registration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlinf_async.hardware.hardware import Hardware, NodeHardwareConfig
from rlinf_async.hardware.robot import Robot, RobotConfig, RobotInfo


@NodeHardwareConfig.register_hardware_config("Franka")
@dataclass(frozen=True)
class FrankaConfig(RobotConfig):
    """A Franka arm; ``controller_node_rank`` is the node that drives it, if not its own."""

    IDENTIFIER: ClassVar[str] = "robot_ip"

    robot_ip: str | None = None
    camera_serials: list[str] | None = None
    camera_type: str = "realsense"
    gripper_type: str = "franka"
    gripper_connection: str | None = None
    controller_node_rank: int | None = None
    disable_validate: bool = False


@NodeHardwareConfig.register_hardware_config("DualFranka")
@dataclass(frozen=True)
class DualFrankaConfig(RobotConfig):
    """Two Franka arms in one environment, each possibly driven by a different node."""

    IDENTIFIER: ClassVar[str] = "left_robot_ip"

    left_robot_ip: str | None = None
    right_robot_ip: str | None = None
    left_camera_serials: list[str] | None = None
    right_camera_serials: list[str] | None = None
    base_camera_serials: list[str] | None = None
    camera_type: str = "realsense"
    base_camera_type: str | None = None
    left_camera_type: str | None = None
    right_camera_type: str | None = None
    left_gripper_type: str = "franka"
    right_gripper_type: str = "franka"
    left_gripper_connection: str | None = None
    right_gripper_connection: str | None = None
    left_controller_node_rank: int | None = None
    right_controller_node_rank: int | None = None


@NodeHardwareConfig.register_hardware_config("GimArm")
@dataclass(frozen=True)
class GimArmConfig(RobotConfig):
    """A GIM arm on a CAN bus."""

    IDENTIFIER: ClassVar[str] = "can_interface"

    can_interface: str = "can0"
    arm_variant: str = "gim_arm_xl"
    camera_serials: list[str] | None = None
    camera_type: str = "realsense"
    disable_validate: bool = False


@NodeHardwareConfig.register_hardware_config("DOSW1")
@dataclass(frozen=True)
class DOSW1HWConfig(RobotConfig):
    """A DOS-W1 robot, addressed by its service's URL, with the ports of its follower and leader arms."""

    IDENTIFIER: ClassVar[str] = "robot_url"

    robot_url: str | None = None
    left_arm_port: int = 50051
    right_arm_port: int = 50053
    left_lead_port: int = 50050
    right_lead_port: int = 50052
    camera_serials: list[str] | None = None


@NodeHardwareConfig.register_hardware_config("Turtle2")
@dataclass(frozen=True)
class Turtle2Config(RobotConfig):
    """A Turtle2, driven by its own node."""

    IDENTIFIER: ClassVar[str] = ""


class FrankaHWInfo(RobotInfo):
    """A node's Franka arm."""


class DualFrankaHWInfo(RobotInfo):
    """A node's two Franka arms."""


class GimArmHWInfo(RobotInfo):
    """A node's GIM arm."""


class DOSW1HWInfo(RobotInfo):
    """A node's DOS-W1 robot."""


class Turtle2HWInfo(RobotInfo):
    """A node's Turtle2."""


@Hardware.register()
class Franka(Robot):
    HW_TYPE = "Franka"
    CONFIG = FrankaConfig
    INFO = FrankaHWInfo


@Hardware.register()
class DualFranka(Robot):
    HW_TYPE = "DualFranka"
    CONFIG = DualFrankaConfig
    INFO = DualFrankaHWInfo


@Hardware.register()
class GimArm(Robot):
    HW_TYPE = "GimArm"
    CONFIG = GimArmConfig
    INFO = GimArmHWInfo


@Hardware.register()
class DOSW1(Robot):
    HW_TYPE = "DOSW1"
    CONFIG = DOSW1HWConfig
    INFO = DOSW1HWInfo


@Hardware.register()
class Turtle2(Robot):
    HW_TYPE = "Turtle2"
    CONFIG = Turtle2Config
    INFO = Turtle2HWInfo
