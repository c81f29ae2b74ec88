"""Kinds of hardware: registered, described in a configuration, found on a node."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.hardware import (
    Accelerator,
    Hardware,
    HardwareConfig,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    RobotInfo,
)
from rlinf_async.hardware.extension import load_extension
from rlinf_async.hardware.node_inventory import take_inventory
from rlinf_async.hardware.robots import FrankaConfig, FrankaHWInfo, GimArmConfig, Turtle2HWInfo


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten with it."""
    monkeypatch.setattr(Hardware, "policy_registry", dict(Hardware.policy_registry))
    monkeypatch.setattr(NodeHardwareConfig, "config_registry", dict(NodeHardwareConfig.config_registry))
    return iter(())


def franka(*configs: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Franka", "configs": list(configs)}


def test_accelerators_are_what_ranks_count_by_default() -> None:
    assert Hardware.DEFAULT_HW_TYPE == Accelerator.HW_TYPE == "Accelerator"
    assert HardwareResource("Franka").count == 0


def test_a_section_is_read_with_the_class_of_its_kind() -> None:
    read = NodeHardwareConfig.from_mapping(franka({"node_rank": 1, "robot_ip": "10.0.0.2"}))
    assert read == NodeHardwareConfig("Franka", (FrankaConfig(1, "10.0.0.2"),))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "Frnka", "configs": []}, r"Unsupported hardware type 'Frnka' \(did you mean 'Franka'\?\); known"),
        ({"type": "Franka"}, r"Missing fields \['configs'\] detected in hardware"),
        ({"type": "Franka", "configs": [], "kind": 1}, "Unknown fields {'kind'} detected in hardware"),
        (franka({"robot_ip": "10.0.0.2"}), r"Missing fields \['node_rank'\] detected in hardware config of Franka"),
        (franka({"node_rank": 0, "robot_pi": "x"}), r"Unknown fields {'robot_pi'}.*did you mean 'robot_ip'"),
        (franka({"node_rank": "a"}), "node_rank must be the rank of a node, got 'a'"),
        ({"type": "Franka", "configs": 5}, "configs of Franka must be a list with a mapping for each piece, got 5"),
        ({"type": "Franka", "configs": ["node_rank"]}, "Each hardware config must be a dictionary"),
        (franka({"node_rank": 0}, {"node_rank": 0}), "Duplicate hardware configs"),
    ],
)
def test_a_section_with_a_mistake_says_what_is_wrong(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NodeHardwareConfig.from_mapping(section)


def test_hardware_of_the_users_own_is_found() -> None:
    @dataclass(frozen=True)
    class ArmInfo(HardwareInfo):
        port: str

    @NodeHardwareConfig.register_hardware_config("Arm")
    @dataclass(frozen=True)
    class ArmConfig(HardwareConfig):
        port: str = "usb0"

    @Hardware.register()
    class Arm(Hardware):
        HW_TYPE = "Arm"

        @classmethod
        def enumerate(cls, node_rank: int, configs: Any = None) -> HardwareResource:
            own = [config for config in configs or () if config.node_rank == node_rank]
            return HardwareResource("Arm", tuple(ArmInfo("Arm", "v2", config.port) for config in own))

    sections = [{"type": "Arm", "configs": [{"node_rank": 3}, {"node_rank": 4, "port": "usb7"}]}]
    assert take_inventory(4, sections) == (HardwareResource("Arm", (ArmInfo("Arm", "v2", "usb7"),)),)
    assert take_inventory(5, sections) == ()


def test_a_search_that_fails_names_the_kind() -> None:
    @Hardware.register()
    class Broken(Hardware):
        HW_TYPE = "Broken"

        @classmethod
        def enumerate(cls, node_rank: int, configs: Any = None) -> HardwareResource | None:
            raise OSError("no such bus")

    with pytest.raises(ConfigError, match="the search for hardware 'Broken' failed: OSError: no such bus"):
        take_inventory(0, [])


@pytest.mark.parametrize("found", [3, [1], HardwareResource("Odd", "ab"), HardwareResource("odd", ())])
def test_an_odd_result_of_a_search_names_the_kind_and_the_value(found: Any) -> None:
    @Hardware.register()
    class Odd(Hardware):
        HW_TYPE = "Odd"

        @classmethod
        def enumerate(cls, node_rank: int, configs: Any = None) -> HardwareResource | None:
            return found  # type: ignore[no-any-return]

    with pytest.raises(ConfigError, match=r"hardware 'Odd' failed: TypeError: enumerate\(\) returns None or .*, got "):
        take_inventory(0, [])


def test_an_error_of_the_users_configuration_class_names_the_entry() -> None:
    @NodeHardwareConfig.register_hardware_config("Arm")
    @dataclass(frozen=True)
    class ArmConfig(HardwareConfig):
        def __post_init__(self) -> None:
            raise KeyError("port")

    with pytest.raises(ConfigError, match=r"hardware config \{'node_rank': 0\} of Arm: KeyError: 'port'"):
        NodeHardwareConfig.from_mapping({"type": "Arm", "configs": [{"node_rank": 0}]})


def test_a_configuration_travels_as_written_whatever_its_class_makes_of_it() -> None:
    @NodeHardwareConfig.register_hardware_config("Arm")
    @dataclass(frozen=True)
    class ArmConfig(HardwareConfig):
        port: Any = "usb0"

        def __post_init__(self) -> None:
            object.__setattr__(self, "port", Path(self.port or "/"))

    for entry in ({"node_rank": 0}, {"node_rank": 0, "port": "usb1"}, {"node_rank": 0, "port": None}):
        (config,) = NodeHardwareConfig.from_mapping({"type": "Arm", "configs": [entry]}).configs
        assert config.to_mapping() == entry


def test_only_a_named_class_of_hardware_is_registered() -> None:
    with pytest.raises(TypeError, match="a kind of hardware is named by a text, such as HW_TYPE = 'Arm', got None"):
        Hardware.register()(type("Nameless", (Hardware,), {}))
    with pytest.raises(TypeError, match="hardware 'Arm': derive the class from HardwareConfig, got"):
        NodeHardwareConfig.register_hardware_config("Arm")(object)  # type: ignore[type-var]


# --- robots -------------------------------------------------------------------------------------------------


def test_a_robots_gaps_are_filled_from_its_nodes_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.2, 10.0.0.3")
    monkeypatch.setenv("CAMERA_SERIALS", "a1;a2,b1")
    section = franka({"node_rank": 1}, {"node_rank": 1, "robot_ip": "10.9.9.9"}, {"node_rank": 2})
    (resource,) = take_inventory(1, [section])
    assert resource.infos == (
        FrankaHWInfo("Franka", "Franka", FrankaConfig(1, "10.0.0.2", ["a1", "a2"])),
        FrankaHWInfo("Franka", "Franka", FrankaConfig(1, "10.9.9.9", ["b1"])),
    )


def test_without_configurations_the_identifiers_variable_makes_the_robots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.2")
    (resource,) = take_inventory(0, [franka()])
    assert [info.config for info in resource.infos if isinstance(info, RobotInfo)] == [FrankaConfig(0, "10.0.0.2")]


def test_a_variable_with_another_number_of_values_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.2")
    with pytest.raises(ValueError, match=r"ROBOT_IP=10.0.0.2 has 1 values, but node 0 has 2 robots"):
        take_inventory(0, [franka({"node_rank": 0}, {"node_rank": 0, "gripper_type": "robotiq"})])


def test_a_robot_that_nobody_says_where_to_find_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROBOT_IP", raising=False)
    with pytest.raises(ConfigError, match=r"has no robot_ip: write it into its hardware config, or set ROBOT_IP"):
        take_inventory(0, [franka({"node_rank": 0})])


def robots_of(node_rank: int, section: dict[str, Any]) -> list[Any]:
    (resource,) = take_inventory(node_rank, [section])
    return [info.config for info in resource.infos if isinstance(info, RobotInfo)]


def gim_arm(*configs: Any) -> dict[str, Any]:
    return {"type": "GimArm", "configs": list(configs)}


@pytest.mark.parametrize("configs", [[], [{"node_rank": 0}]], ids=["no configuration", "a bare one"])
def test_a_variable_counts_where_the_field_has_a_default(monkeypatch: pytest.MonkeyPatch, configs: list[Any]) -> None:
    monkeypatch.setenv("CAN_INTERFACE", "can3")
    monkeypatch.setenv("ARM_VARIANT", "gim_arm_s")
    assert robots_of(0, gim_arm(*configs)) == [GimArmConfig(0, "can3", "gim_arm_s")]


def test_several_values_are_as_many_robots_each_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAN_INTERFACE", "can0,can1")
    assert robots_of(0, gim_arm()) == [GimArmConfig(0, "can0"), GimArmConfig(0, "can1")]


def test_what_is_configured_counts_before_a_variable_also_where_it_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CAN_INTERFACE", "can3")
    assert robots_of(0, gim_arm({"node_rank": 0, "can_interface": "can0"})) == [GimArmConfig(0, "can0")]


def test_two_robots_of_a_node_have_two_identifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAN_INTERFACE", raising=False)
    two = gim_arm({"node_rank": 0}, {"node_rank": 0, "arm_variant": "gim_arm_s"})
    text = r"two robots \(GimArmConfig\) of node 0 have the can_interface 'can0': .* or set CAN_INTERFACE on that node"
    with pytest.raises(ConfigError, match=text):
        take_inventory(0, [two])
    monkeypatch.setenv("CAN_INTERFACE", "can0,can1")
    assert [robot.can_interface for robot in robots_of(0, two)] == ["can0", "can1"]


def test_ranks_of_nodes_are_not_read_from_a_nodes_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTROLLER_NODE_RANK", "7")
    monkeypatch.setenv("NODE_RANK", "7")
    monkeypatch.delenv("ROBOT_IP", raising=False)
    assert robots_of(0, franka({"node_rank": 0, "robot_ip": "10.0.0.2"})) == [FrankaConfig(0, "10.0.0.2")]


@pytest.mark.parametrize(("text", "value"), [("false", False), ("0", False), ("True", True), ("1", True)])
def test_a_switch_in_a_variable_is_a_switch(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.2")
    monkeypatch.setenv("DISABLE_VALIDATE", text)
    assert robots_of(0, franka()) == [FrankaConfig(0, "10.0.0.2", disable_validate=value)]


@pytest.mark.parametrize(("name", "text"), [("DISABLE_VALIDATE", "maybe"), ("LEFT_ARM_PORT", "5e4")])
def test_a_variable_that_is_nothing_of_the_kind_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    for identifier in ("ROBOT_IP", "ROBOT_URL"):
        monkeypatch.setenv(identifier, "10.0.0.2")
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=f"{name}: '{text}' is not"):
        take_inventory(0, [])


def test_an_empty_value_leaves_a_robot_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAN_INTERFACE", "can1,can2")
    monkeypatch.setenv("ARM_VARIANT", ",gim_arm_s")
    assert robots_of(0, gim_arm()) == [GimArmConfig(0, "can1"), GimArmConfig(0, "can2", "gim_arm_s")]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"disable_validate": "false"}, "disable_validate must be true or false, got 'false'"),
        ({"controller_node_rank": "1"}, "controller_node_rank must be a number, got '1'"),
        ({"robot_ip": 10}, "robot_ip must be text, got 10, and text is written in quotes"),
        (
            {"camera_serials": [10]},
            r"camera_serials must be a list of texts, got \[10\], and text is written in quotes",
        ),
        ({"camera_serials": "a1;a2"}, "camera_serials must be a list of texts, got 'a1;a2'"),
    ],
)
def test_a_robots_field_of_another_type_is_an_error(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NodeHardwareConfig.from_mapping(franka({"node_rank": 0, **entry}))


# --- a process of its own -----------------------------------------------------------------------------------

EXTENSION = """
    from dataclasses import dataclass
    from rlinf_async.hardware import Hardware, HardwareInfo, HardwareResource

    print("loading, which is no answer")

    @dataclass(frozen=True)
    class LampInfo(HardwareInfo):
        watts: int

    def register():
        @Hardware.register()
        class Lamp(Hardware):
            HW_TYPE = "Lamp"

            @classmethod
            def enumerate(cls, node_rank, configs=None):
                return HardwareResource("Lamp", (LampInfo("Lamp", "desk", 40),))
"""


def ask(folder: Path, module: str) -> dict[str, Any]:
    question = {"node_rank": 0, "sections": [], "sys_path": [str(folder)]}
    done = subprocess.run(
        [sys.executable, "-m", "rlinf_async.hardware.node_inventory"],
        input=json.dumps(question),
        env={**os.environ, "RLINF_EXT_MODULE": module},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_inventory_knows_what_an_extension_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lamps.py").write_text(dedent(EXTENSION))
    answer = ask(tmp_path, "lamps")
    assert (answer["warning"], answer["error"]) == ("", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    (resource,) = pickle.loads(bytes.fromhex(answer["resources"]))
    assert (resource.type, resource.infos[0].model, resource.infos[0].watts) == ("Lamp", "desk", 40)


def test_a_search_that_exits_is_an_error_that_names_its_kind(tmp_path: Path) -> None:
    text = dedent(EXTENSION).replace('return HardwareResource("Lamp", (LampInfo("Lamp", "desk", 40),))', "exit(3)")
    (tmp_path / "lamps.py").write_text(text)
    assert ask(tmp_path, "lamps")["error"] == "the search for hardware 'Lamp' failed: SystemExit: 3"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "ModuleNotFoundError: No module named 'lamps'"),
        ("x = 1", "AttributeError: it has no function register()"),
        ("def register():\n    raise OSError('no bus')", "OSError: no bus"),
        (
            "class Odd(Exception):\n    def __str__(self): raise OSError\nraise Odd",
            "Odd: <its str() fails with OSError>",
        ),
        ("raise SystemExit('needs a bus')", "SystemExit: needs a bus"),
    ],
)
def test_an_extension_that_fails_is_a_warning_that_names_it(tmp_path: Path, text: str | None, error: str) -> None:
    if text is not None:
        (tmp_path / "lamps.py").write_text(text)
    answer = ask(tmp_path, "lamps")
    assert answer["warning"] == f"the extension module 'lamps' (RLINF_EXT_MODULE) is not loaded: {error}"
    assert pickle.loads(bytes.fromhex(answer["resources"])) == ()


def test_a_second_thread_waits_until_the_extension_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import threading\nmay_end, done = threading.Event(), []\ndef register(): may_end.wait(10); done.append(1)\n"
    (tmp_path / "slow_lamps.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    slow_lamps: Any = importlib.import_module("slow_lamps")
    environ = {"RLINF_EXT_MODULE": "slow_lamps"}
    seen: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: (load_extension(environ), seen.append(list(slow_lamps.done)))) for _ in "12"
    ]
    for thread in threads:
        thread.start()
    threads[1].join(0.1)
    slow_lamps.may_end.set()
    for thread in threads:
        thread.join()
    assert seen == [[1], [1]]


@pytest.mark.parametrize(
    "register",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
        "import os; from rlinf_async.hardware import load_extension; load_extension(os.environ)",
    ],
)
def test_an_extension_may_leave_a_thread_or_load_itself_again(tmp_path: Path, register: str) -> None:
    (tmp_path / "lamps.py").write_text(f"def register():\n    {register}")
    assert ask(tmp_path, "lamps")["warning"] == ""


def test_the_one_robot_of_a_node_takes_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMERA_SERIALS", "a1,a2")
    (resource,) = take_inventory(1, [franka({"node_rank": 1, "robot_ip": "10.0.0.2"})])
    assert resource.infos == (FrankaHWInfo("Franka", "Franka", FrankaConfig(1, "10.0.0.2", ["a1", "a2"])),)


def test_a_robot_without_an_identifier_is_one_that_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "0")  # of another launcher
    section = {"type": "Turtle2", "configs": [{"node_rank": 1}]}
    (resource,) = take_inventory(1, [section])
    assert [type(info) for info in resource.infos] == [Turtle2HWInfo]
    assert take_inventory(0, [section]) == ()
