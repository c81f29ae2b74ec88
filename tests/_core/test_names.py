from __future__ import annotations

import pytest

from rlinf_async._core.names import check_channel_name, check_group_name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\nb", "\udcff", "x" * 201, "ü" * 101, "driver", "recorder",
     "daemon_0.log", "template_7_0.log"],
)  # fmt: skip
def test_a_group_has_no_name_that_a_file_or_the_commands_have_no_room_for(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a group's name"):
        check_group_name(name)


def test_other_names_of_groups_are_taken_as_they_are() -> None:
    for name in ("rollout", "ü" * 100, "a b", "drivers", "Recorder", "daemon_0", "*"):
        check_group_name(name)


def test_a_channels_name_is_text_of_up_to_4096_bytes() -> None:
    for name in ("", "a\n/b", "driver", "ü" * 2048):
        check_channel_name(name)
    for name in ("\udcff", "ü" * 2049):
        with pytest.raises(ValueError, match="cannot be a channel's name"):
            check_channel_name(name)


@pytest.mark.parametrize("check", [check_group_name, check_channel_name])
def test_a_name_is_a_str(check: object) -> None:
    with pytest.raises(TypeError, match=r"is a str, got b'x'"):
        check(b"x")  # type: ignore[operator]  # one of the two functions
