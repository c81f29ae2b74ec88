from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rlinf_async.errors import ConfigError
from rlinf_launcher.cli.host_ranges import MAX_HOSTS, expand
from rlinf_launcher.cli.hosts_file import Host, describe, parse_hosts, parse_list, read_hosts
from rlinf_launcher.source_text import SourceSpan

GRAMMAR = """\
# comment

node01                                     # comment
node02 slots=8
node03 slots=8 max_slots=4 max-slots=4
node04:8
user@node05:2222 slots=4
gpu[01-03,20] slots=8
[fe80::1]:2222
robot1 slots=0 labels=franka,arm env.ROBOT_IP=10.0.0.2 python=/opt/v/bin/python addr=10.1.0.7 gpus=0,2
"""


def span(text: str) -> SourceSpan:
    return SourceSpan(text, "nodes.txt", 1, 0, text)


def refusal(text: str, allow_duplicates: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_hosts(text, allow_duplicates=allow_duplicates)
    return str(caught.value)


# --- what the grammar means ---------------------------------------------------------------------------------


def test_every_form_of_the_grammar_is_understood_in_order() -> None:
    hosts = parse_hosts(GRAMMAR)
    assert [host.name for host in hosts] == [
        *("node01", "node02", "node03", "node04", "node05"),
        *("gpu01", "gpu02", "gpu03", "gpu20"),
        *("fe80::1", "robot1"),
    ]
    by_name = {host.name: host for host in hosts}
    assert by_name["node01"] == Host("node01", source="nodes.txt:3")
    assert by_name["node02"].slots == 8
    assert by_name["node03"].slots == 4, "max_slots caps slots"
    assert by_name["node05"] == Host("node05", user="user", port=2222, slots=4, source="nodes.txt:7")
    assert by_name["robot1"] == Host(
        "robot1",
        slots=0,
        labels=("franka", "arm"),
        env={"ROBOT_IP": "10.0.0.2"},
        python="/opt/v/bin/python",
        address="10.1.0.7",
        gpus=("0", "2"),
        source="nodes.txt:10",
    )


@pytest.mark.parametrize(
    ("line", "slots", "port"),
    [
        ("node:8", 8, None),
        ("user@node:2222", None, 2222),
        ("node:2222 port=2222", None, 2222),
        ("node slots=8 port=2222", 8, 2222),
        ("node:8 slots=8", 8, None),
        ("[fe80::1]:2222", None, 2222),
        ("user@[fe80::1]:2222 slots=3", 3, 2222),
        ("10.0.0.1:4", 4, None),
    ],
)
def test_a_number_after_a_colon_is_slots_or_a_port(line: str, slots: int | None, port: int | None) -> None:
    (host,) = parse_hosts(line)
    assert (host.slots, host.port) == (slots, port)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0-3", ("0", "1", "2", "3")), ("none", ()), ("", ()), ("GPU-8932f937,MIG-a/1/0", ("GPU-8932f937", "MIG-a/1/0"))],
)
def test_gpus_are_indices_ranges_uuids_or_none(text: str, gpus: tuple[str, ...]) -> None:
    assert parse_hosts(f"node gpus={text}")[0].gpus == gpus


def test_quotes_keep_blanks_in_a_variable() -> None:
    (host,) = parse_hosts("""node env.A="two words" env.B=x=#y env.C='it "is"' # it's a comment""")
    assert host.env == {"A": "two words", "B": "x=#y", "C": 'it "is"'}


def test_fake_gpus_are_counted() -> None:
    assert parse_hosts("node fake_gpus=4 max_slots=2")[0] == Host(
        "node", fake_gpus=4, max_slots=2, source="nodes.txt:1"
    )


def test_windows_line_ends_tabs_and_a_bom_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_bytes(b"\xef\xbb\xbfnode01\tslots=8\r\nnode02\r\n")
    assert [(host.name, host.slots) for host in read_hosts(str(path), io.StringIO())] == [
        ("node01", 8),
        ("node02", None),
    ]


@pytest.mark.parametrize(
    ("line", "local"),
    [
        ("localhost", True),
        ("LocalHost slots=2", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        ("node01", False),
        ("alice@localhost", False),
        ("localhost port=2222", False),
    ],
)
def test_this_machine_is_local_unless_user_or_port_need_ssh(line: str, local: bool) -> None:
    assert parse_hosts(line)[0].is_local is local


def test_a_host_can_be_a_key_of_a_dictionary() -> None:
    (host,) = parse_hosts("node env.A=1")
    assert {host: 1}[parse_hosts("node env.A=1")[0]] == 1


# --- ranges -------------------------------------------------------------------------------------------------


@given(
    prefix=st.text("abcgpu-.", max_size=4),
    suffix=st.text("abc-.", max_size=3),
    width=st.integers(1, 5),
    pieces=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 30)), min_size=1, max_size=5),
)
def test_expanding_a_range_gives_its_original_names(
    prefix: str, suffix: str, width: int, pieces: list[tuple[int, int]]
) -> None:
    bounds = [(str(low).zfill(width), str(low + more).zfill(width)) for low, more in pieces]
    written = ",".join(low if low == high else f"{low}-{high}" for low, high in bounds)
    names = tuple(
        f"{prefix}{number:0{width}d}{suffix}" for low, more in pieces for number in range(low, low + more + 1)
    )
    assert expand(span(f"{prefix}[{written}]{suffix}")) == names


def test_several_brackets_multiply_and_the_last_counts_fastest() -> None:
    assert expand(span("r[1-2]n[08-09]")) == ("r1n08", "r1n09", "r2n08", "r2n09")


def test_an_oversized_range_is_refused_before_it_is_built() -> None:
    text = refusal("node[0-999999999]")
    assert "1000000000 hosts" in text
    assert str(MAX_HOSTS) in text


@pytest.mark.parametrize(
    ("entry", "column", "words"),
    [
        ("gpu[16-01]", 5, "'16-01' runs backwards"),
        ("gpu[1-b]", 5, "'1-b' is not a range"),
        ("gpu[]", 5, "'' is not a range"),
        ("gpu[1,]", 7, "'' is not a range"),
        ("gpu[01-16", 4, "never closed"),
        ("gpu01]", 6, "never opened"),
        ("gpu[1[2]]", 5, "'1[2' is not a range"),
        ("gpu[²]", 5, "is not a range"),
    ],
)
def test_a_bad_range_is_named_with_its_place(entry: str, column: int, words: str) -> None:
    text = refusal(f"\n  {entry} slots=8")
    assert text.startswith(f"nodes.txt:2:{column + 2}: ")
    assert words in text


# --- bad input ----------------------------------------------------------------------------------------------


def test_an_error_shows_place_text_mark_and_fix() -> None:
    assert refusal("node01\n\tnode02  slotz=8 # comment") == (
        "nodes.txt:2:10: unknown key 'slotz'; did you mean 'slots'?\n"
        "  2 | \tnode02  slotz=8 # comment\n"
        "    | \t        ^^^^^^^\n"
        "  fix: use one of slots=, max_slots=, port=, addr=, python=, gpus=, fake_gpus=, labels=, env.NAME="
    )


@pytest.mark.parametrize(
    ("line", "column", "words", "fix"),
    [
        ("slots=8", 1, "'slots=8' is a setting, not a host name", "write the host first"),
        ("-oProxyCommand=x", 1, "begins with '-'", "write the host first"),
        ("me@-oProxy", 1, "'-oProxy' is not a host name", "letters, digits"),
        ("-x@node", 1, "begins with '-'", "write the host first"),
        ("node;id", 1, "'node;id' is not a host name", "letters, digits"),
        ("node01,node02", 1, "'node01,node02' is not a host name", "one host per line"),
        ("node01 node02", 8, "'node02' is not key=value", "one host per line"),
        ("a@b@node", 1, "'a@b' is not a user name", "user@host"),
        ("@node", 1, "'' is not a user name", "user@host"),
        ("fe80::1", 1, "several colons", "[fe80::1]"),
        ("fe80::1:8", 1, "several colons", "[fe80::1]:2222"),
        ("[fe80::zz]", 1, "'fe80::zz' is not an IPv6 address", "[fe80::1]"),
        ("[fe80::1", 1, "never closed", "[fe80::1]"),
        ("[fe80::1]x", 1, "'x' after an IPv6 address", "[fe80::1]:2222"),
        ("[fe80::1%eth0]", 1, "with a zone", "~/.ssh/config"),
        ("node:", 1, "'' after the colon is not a number", "node04:8"),
        ("node:eight", 1, "'eight' after the colon", "node04:8"),
        ("node:8 port=2222", 6, "':8' means port=8 here, and port=2222 stands beside", "slots=8"),
        ("node:8 slots=4", 6, "':8' means slots=8 here, and slots=4 stands beside", "drop ':8'"),
        ("user@node:0", 11, "'0' is not a number from 1 to 65535", "digits"),
        ("node port=65536", 11, "'65536' is not a number from 1 to 65535", "digits"),
        ("node slots=-1", 12, "'-1' is not a number from 0", "digits"),
        ("node slots=", 12, "'' is not a number", "digits"),
        ("node slots=8 slots=8", 14, "slots= is given twice", "keep one"),
        ("node max_slots=8 max-slots=4", 18, "with two values", "keep one"),
        ("node addr=eth0", 11, "'eth0' is not an IP address", "addr=10.1.0.7"),
        ("node addr=0.0.0.0", 11, "no node can be reached by 0.0.0.0", "one interface"),
        ("n[1-2] addr=10.0.0.1", 13, "one address for 2 hosts", "a line of its own"),
        ("node gpus=0,x", 13, "'x' is not a GPU", "gpus=0,2"),
        ("node gpus=0,0-1", 13, "GPU 0 is named twice", "once"),
        ("node gpus=0 fake_gpus=2", 23, "real and fake", "keep"),
        ("node env.2X=1", 6, "'2X' cannot name a variable", "env.NAME=value"),
        ("node env.X=1 env.X=2", 14, "env.X is given twice", "keep one"),
        ("node env.X='a b", 12, "quote is never closed", "end it with '"),
        ("node python=-c", 13, "'-c' is not an interpreter", "python=/opt"),
        ("node env.RLINF_RUN_ID=1", 6, "RLINF_RUN_ID is set by the launcher", "leave it out"),
        ("node env.A=x\0", 13, "a zero byte stands here", "delete it"),
        ("node labels=a,node", 15, "every run has a group 'node', of all its nodes", "choose another label"),
        ("node gpus=0,00", 13, "GPU 0 is named twice", "once"),
        ("node labels=a,,b", 15, "'' is not a label", "labels="),
    ],
)
def test_every_bad_line_is_refused_with_place_and_fix(line: str, column: int, words: str, fix: str) -> None:
    text = refusal(f"good01\n{line}")
    assert text.startswith(f"nodes.txt:2:{column}: "), text
    assert words in text
    assert fix in text.splitlines()[-1]


def test_all_bad_lines_are_told_at_once_up_to_ten() -> None:
    text = refusal("a b\n" * 3 + "good\n")
    assert re.findall(r"nodes\.txt:\d+:\d+", text) == ["nodes.txt:1:3", "nodes.txt:2:3", "nodes.txt:3:3"]
    assert refusal("a b\n" * 12).endswith("… and 2 more bad lines")


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n  # comments\n"])
def test_a_file_without_hosts_is_an_error(text: str) -> None:
    assert refusal(text).startswith("nodes.txt:1:1: no host is named here")


def test_a_long_line_is_shown_around_the_bad_place() -> None:
    line = "node " + " ".join(f"env.V{n}=1" for n in range(100)) + " slotz=1 " + "env.W=1 " * 100
    view, mark = refusal(line).splitlines()[1:3]
    assert len(view) < 120
    start = mark.index("^")
    assert view[start : start + mark.count("^")] == "slotz=1"


# --- hosts listed twice -------------------------------------------------------------------------------------


def test_a_host_listed_twice_is_an_error_with_both_lines() -> None:
    text = refusal("node01\n# x\nNODE01 slots=4")
    assert text.startswith("nodes.txt:3:1: 'NODE01' is listed twice: nodes.txt:1 and nodes.txt:3")
    assert "--allow-duplicate-hosts" in text
    assert "listed twice" in refusal("gpu[1-3]\ngpu2")
    assert "listed twice" in refusal("localhost\n127.0.0.1")


def test_two_ssh_ports_of_one_name_are_two_hosts() -> None:
    assert [host.port for host in parse_hosts("node port=2201\nnode port=2202")] == [2201, 2202]


def test_allowed_duplicates_add_up_their_slots() -> None:
    hosts = parse_hosts("a slots=4\nb\na slots=2\nb\nb slots=0", allow_duplicates=True)
    assert [(host.name, host.slots, host.source) for host in hosts] == [
        ("a", 6, "nodes.txt:1"),
        ("b", 2, "nodes.txt:2"),
    ]
    (host,) = parse_hosts("a slots=4 max_slots=5\na slots=4", allow_duplicates=True)
    assert host.slots == 5


def test_duplicates_that_contradict_each_other_are_refused_even_where_allowed() -> None:
    assert "different settings" in refusal("a gpus=0\na gpus=1", allow_duplicates=True)


# --- where the text comes from ------------------------------------------------------------------------------


def test_hosts_are_read_from_stdin_a_file_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text("a slots=1\n")
    assert read_hosts("-", io.StringIO("a slots=1"))[0].source == "stdin:1"
    assert read_hosts(str(path), io.StringIO())[0].source == f"{path}:1"
    assert [(host.name, host.slots, host.source) for host in read_hosts("a:1, b,gpu[1-2]:8", io.StringIO())] == [
        ("a", 1, "--hosts:1"),
        ("b", None, "--hosts:1"),
        ("gpu1", 8, "--hosts:1"),
        ("gpu2", 8, "--hosts:1"),
    ]


@pytest.mark.parametrize("argument", ["node01,", "node01:1", "localhost", "10.0.0.1", "me@node01", "[fe80::1]"])
def test_one_host_alone_is_a_list_where_unambiguous(argument: str) -> None:
    assert len(read_hosts(argument, io.StringIO())) == 1


def test_a_folder_named_like_this_machine_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "localhost").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_hosts("localhost", io.StringIO())[0].is_local


def test_a_list_may_be_longer_than_any_files_name() -> None:
    assert len(read_hosts(",".join(f"node{number}:8" for number in range(1000)), io.StringIO())) == 1000


def test_a_binary_stdin_is_a_users_mistake() -> None:
    with pytest.raises(ConfigError, match="stdin: cannot read the hosts: not a text"):
        read_hosts("-", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))


def test_a_bare_word_is_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=re.escape("there is no file 'node01'")) as caught:
        read_hosts("node01", io.StringIO())
    assert "--hosts node01," in str(caught.value)


def test_a_path_is_missing_for_the_reason_that_the_system_gives(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/nodes:1:1: cannot read the hosts: Not a directory\n  fix: check"):
        read_hosts(str(tmp_path / "file/nodes"), io.StringIO())


@pytest.mark.parametrize(("argument", "column"), [("a,,b", 3), (",", 1), (",a", 1)])
def test_a_hole_in_a_list_is_named_with_its_place(argument: str, column: int) -> None:
    with pytest.raises(ConfigError, match=rf"^--hosts:1:{column}: no host stands here"):
        parse_list(argument)


def test_a_bad_host_in_a_list_is_named_with_place() -> None:
    with pytest.raises(ConfigError, match=r"^\$RLINF_HOSTS:1:5: 'slots=8' is a setting"):
        read_hosts("a:8,slots=8", io.StringIO(), "$RLINF_HOSTS")


def test_an_unreadable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":1:1: cannot read the hosts: Is a directory"):
        read_hosts(str(tmp_path), io.StringIO())
    binary = tmp_path / "nodes.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r":1:1: cannot read the hosts: not a text file"):
        read_hosts(str(binary), io.StringIO())


# --- showing ------------------------------------------------------------------------------------------------


def test_a_description_shows_a_lines_meaning_without_secrets() -> None:
    (host,) = parse_hosts(
        "me@[fe80::1]:22 addr=10.0.0.1 python=py gpus=0-1 max_slots=4 labels=a,b env.X=1 env.API_KEY=hush"
    )
    assert describe(host) == (
        "fe80::1 user=me port=22 slots=(one per GPU, else 1) max_slots=4 addr=10.0.0.1 python=py gpus=0,1 "
        "labels=a,b env.X=1 env.API_KEY=*** (ssh) from nodes.txt:1"
    )
    assert describe(Host("localhost", slots=2, fake_gpus=2)) == "localhost slots=2 fake_gpus=2 (local)"


# --- anything at all ----------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["node", "a@b", "[1-3]", "[fe80::1]", ":8", "slots=", "8", "port=22", "gpus=0-", "env.A=", "'", '"', "#", "-o"]
)
TEXT = st.one_of(st.text(max_size=60), st.lists(st.one_of(WORDS, st.sampled_from(" \n,=")), max_size=8).map("".join))


@given(TEXT, st.booleans())
def test_any_text_gives_safe_hosts_or_an_error_with_place(text: str, again: bool) -> None:
    for read in (parse_hosts, parse_list):
        try:
            hosts = read(text, "nodes.txt", again)
        except ConfigError as error:
            assert re.match(r"nodes\.txt:\d+:\d+: ", str(error))  # noqa: PT017
            assert "\n  fix: " in str(error)  # noqa: PT017
        else:
            assert hosts
            for host in hosts:
                assert re.fullmatch(r"[A-Za-z0-9_.:][A-Za-z0-9_.\-:]*", host.name)
                assert host.user is None or re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*", host.user)
                assert describe(host)
