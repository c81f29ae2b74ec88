"""Robots with built-in support (Franka, GimArm, DOS-W1): their configuration keys and registration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlinf_async.hardware.hardware import Hardware, NodeHardwareConfig
from rlinf_async.hardware.robot import Robot, RobotConfig


@NodeHardwareConfig.register_hardware_config("Franka")
@dataclass(frozen=True)
class FrankaConfig(RobotConfig):
    """A Franka arm; ``controller_node_rank`` is the node that drives it, where that is another."""

    IDENTIFIER: ClassVar[str] = "robot_ip"

    robot_ip: str | None = None
    camera_serials: tuple[str, ...] | None = None
    camera_type: str = "realsense"
    gripper_type: str = "franka"
    gripper_connection: str | None = None
    controller_node_rank: int | None = None
    disable_validate: bool = False


@NodeHardwareConfig.register_hardware_config("GimArm")
@dataclass(frozen=True)
class GimArmConfig(RobotConfig):
    """A GIM arm on a CAN bus."""

    IDENTIFIER: ClassVar[str] = "can_interface"

    can_interface: str = "can0"
    arm_variant: str = "gim_arm_xl"


@NodeHardwareConfig.register_hardware_config("DOSW1")
@dataclass(frozen=True)
class DOSW1Config(RobotConfig):
    """A DOS-W1 robot, reached by its service's URL."""

    IDENTIFIER: ClassVar[str] = "robot_url"

    robot_url: str | None = None
    left_arm_port: int = 50051


@Hardware.register()
class Franka(Robot):
    HW_TYPE = "Franka"
    CONFIG = FrankaConfig


@Hardware.register()
class GimArm(Robot):
    HW_TYPE = "GimArm"
    CONFIG = GimArmConfig


@Hardware.register()
class DOSW1(Robot):
    HW_TYPE = "DOSW1"
    CONFIG = DOSW1Config
