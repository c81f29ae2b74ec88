from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rlinf_async.errors import ConfigError
from rlinf_launcher.cli.flags import FLAGS, GROUPS, help_text
from rlinf_launcher.cli.parsing import exported, parse
from rlinf_launcher.options import Options
from rlinf_launcher.remote.exported_env import EXPORTED, OWN_TO_A_MACHINE, RESERVED, read_env_file, shown

CHECKOUT = Path(__file__).parents[3]


def parsed(line: str, **environ: str) -> Options:
    return parse(shlex.split(line), environ)


def refusal(line: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(line, **environ)
    return str(caught.value)


# --- what the words mean ------------------------------------------------------------------------------------


def test_a_script_alone_leaves_every_option_at_its_default() -> None:
    assert parsed("train.py") == Options(script="train.py")
    assert parsed("train.py").start_timeout == 60.0


def test_every_flag_is_read(tmp_path: Path) -> None:
    options = parsed(
        f"--hosts nodes.txt --nnodes 2 --allow-duplicate-hosts --iface eth0 --module --python /opt/python "
        f"--cwd /work --sync {tmp_path} --env A=1 --env B --env-file /vars --export 'MY_*' --ssh-user me "
        "--prologue 'source x; y' --launcher srun --port-range 20000-20099 "
        "--ssh-port 2222 --ssh-key /key --ssh-args '-J jump' --ssh-args=-C --accept-new-host-keys "
        "--start-timeout 2.5 --fail-fast --timeout 60 --log-dir /logs --trace /run.json --tee 0,3 --json --quiet "
        "--dry-run --check pkg.train x"
    )
    assert options == Options(
        script="pkg.train",
        args=("x",),
        module=True,
        hosts="nodes.txt",
        nnodes=2,
        allow_duplicate_hosts=True,
        iface="eth0",
        python="/opt/python",
        cwd="/work",
        sync=tmp_path,
        env=(("A", "1"), ("B", None)),
        env_file=(Path("/vars"),),
        export=("MY_*",),
        prologue="source x; y",
        launcher="srun",
        port_range=(20000, 20099),
        ssh_user="me",
        ssh_port=2222,
        ssh_key=Path("/key"),
        ssh_args=("-J", "jump", "-C"),
        accept_new_host_keys=True,
        start_timeout=2.5,
        fail_fast=True,
        timeout=60.0,
        log_dir=Path("/logs"),
        trace=Path("/run.json"),
        tee="0,3",
        json=True,
        verbosity=-1,
        dry_run=True,
        check=True,
    )
    assert parsed("--local-nodes 3 x").local_nodes == 3
    assert parsed("--sweep 0123abcd").sweep == "0123abcd"
    assert parsed("--version").version
    assert parsed("-h").help


@pytest.mark.parametrize("spelling", ["--hosts", "--hostfile", "--machinefile", "-H"])
def test_the_hosts_go_by_the_names_that_other_launchers_use(spelling: str) -> None:
    assert parsed(f"{spelling} a:8,b x").hosts == "a:8,b"


def test_a_value_follows_an_equals_sign_or_a_letter() -> None:
    assert parsed("--nnodes=2 x") == parsed("-n2 x") == parsed("-n 2 x") == parsed("-n=2 x")
    assert parsed("-eA=b=c x").env == (("A", "b=c"),)
    assert parsed("--env A= x").env == (("A", ""),)


@pytest.mark.parametrize("flag", ["--start_timeout 1", "--start-timeout=1", "--start_timeout=1"])
def test_dash_and_underscore_are_the_same_in_a_flags_name(flag: str) -> None:
    assert parsed(f"{flag} x").start_timeout == 1


def test_underscores_in_a_value_stay() -> None:
    assert parsed("--log-dir=/my_logs --env=MY_VAR=a_b x").log_dir == Path("/my_logs")


def test_short_flags_without_values_run_together() -> None:
    assert parsed("-vv x").verbosity == 2
    assert parsed("-v -v -v x").verbosity == 2
    assert parsed("-qm x") == Options(script="x", module=True, verbosity=-1)
    assert parsed("-mn2 x").nnodes == 2


def test_the_last_of_two_values_wins() -> None:
    assert parsed("-n 2 -n 3 x").nnodes == 3
    assert not parsed("--json --json=no x").json


@given(st.lists(st.text(max_size=8), max_size=6))
def test_everything_after_the_script_is_the_scripts_word_for_word(args: list[str]) -> None:
    assert parse(["-n", "2", "train.py", *args], {}).args == tuple(args)
    assert parse(["-n", "2", "--", "train.py", *args], {}).args == tuple(args)


def test_two_dashes_end_the_flags() -> None:
    options = parsed("-q -- -odd.py -- -n 2")
    assert (options.script, options.args) == ("-odd.py", ("--", "-n", "2"))


def test_zero_seconds_wait_for_ever() -> None:
    assert parsed("--start-timeout 0 x").start_timeout is None


@pytest.mark.parametrize(
    ("given_ranks", "meant"), [("all", "all"), ("none", "none"), ("0", "0"), ("3,0,3", "0,3"), ("0-2,7", "0,1,2,7")]
)
def test_tee_takes_all_none_or_ranks(given_ranks: str, meant: str) -> None:
    assert parsed(f"--tee {given_ranks} x").tee == meant


def test_paths_are_absolute_because_every_node_uses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    options = parsed("--log-dir logs --cwd sub --ssh-key=~/.ssh/id --env-file=vars x")
    assert options.log_dir == tmp_path / "logs"
    assert options.cwd == str(tmp_path / "sub")
    assert options.ssh_key == Path("/home/me/.ssh/id")
    assert options.env_file == (tmp_path / "vars",)


# --- sync, whose folder may be left out ---------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sync_without_a_folder_is_the_enclosing_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src")
    assert parsed("--sync x").sync == project / "src"
    (project / "pyproject.toml").touch()
    assert parsed("--sync x").sync == project
    (project / "src" / ".git").mkdir()
    assert parsed("--sync x").sync == project / "src"
    for example in ("embodiment", "reasoning"):  # they import what is in examples/common
        monkeypatch.chdir(CHECKOUT / "examples" / example)
        assert parsed("--sync x").sync == CHECKOUT


def test_sync_without_a_folder_ships_no_home_or_root(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    monkeypatch.setenv("HOME", str(project))
    assert refusal("--sync x").startswith(f"--sync: all of {project} would be shipped")
    assert parsed("--sync=. x").sync == project
    monkeypatch.chdir(project / "src")
    assert parsed("--sync x").sync == project / "src"
    monkeypatch.chdir("/")
    assert "all of / would be shipped" in refusal("--sync x")


def test_sync_without_a_project_around_is_the_working_directory(project: Path) -> None:
    assert parsed("--sync train.py") == Options(script="train.py", sync=project)
    assert parsed("--sync -n 2 train.py").sync == project
    assert parsed("--sync missing.py").script == "missing.py"
    assert parsed(f"--sync {'x' * 5000}").script == "x" * 5000, "a name that is too long for any file"


def test_sync_takes_the_next_word_if_it_is_a_folder(project: Path) -> None:
    assert parsed("--sync src train.py") == Options(script="train.py", sync=project / "src")
    assert parsed("--sync=src train.py") == Options(script="train.py", sync=project / "src")
    assert parsed("--sync -- src") == Options(script="src", sync=project)


def test_a_folder_that_sync_names_plainly_must_be_there(project: Path) -> None:
    assert "--sync: 'gone' is not a folder" in refusal("--sync=gone train.py")
    Path("loop").symlink_to("loop")
    assert "--sync: 'loop' is not a folder" in refusal("--sync=loop train.py")
    assert parsed("--sync train.py", HOME="loop").script == "train.py"
    assert "$RLINF_SYNC: 'gone' is not a folder" in refusal("train.py", RLINF_SYNC="gone")
    assert parsed("train.py", RLINF_SYNC=".").sync == project


# --- variables in place of flags ----------------------------------------------------------------------------


def test_a_flag_overrides_its_variable() -> None:
    environ = {"RLINF_NNODES": "4", "RLINF_START_TIMEOUT": "0", "RLINF_JSON": "yes", "RLINF_VERBOSE": "2"}
    options = parsed("x", **environ)
    assert (options.nnodes, options.start_timeout, options.json, options.verbosity) == (4, None, True, 2)
    options = parsed("-n 1 --start-timeout 5 --json=0 -v x", **environ)
    assert (options.nnodes, options.start_timeout, options.json, options.verbosity) == (1, 5, False, 1)


def test_a_repeating_flags_variable_holds_words_and_comes_first() -> None:
    options = parsed("-e B=2 --ssh-args=-C x", RLINF_ENV="A='one two' B=1", RLINF_SSH_ARGS="-o 'X=a b'")
    assert options.env == (("A", "one two"), ("B", "1"), ("B", "2"))
    assert options.ssh_args == ("-o", "X=a b", "-C")


def test_an_empty_variable_counts_as_unset() -> None:
    assert parsed("x", RLINF_NNODES="", RLINF_JSON="", RLINF_ENV="") == Options(script="x")


def test_a_bad_value_in_a_variable_names_the_variable() -> None:
    assert "$RLINF_NNODES: 'two' is not a number" in refusal("x", RLINF_NNODES="two")
    assert "$RLINF_JSON: 'maybe' is neither yes nor no" in refusal("x", RLINF_JSON="maybe")
    assert '$RLINF_ENV: cannot read "A=\'"' in refusal("x", RLINF_ENV="A='")


def test_the_hosts_variable_is_left_to_the_search_for_hosts() -> None:
    assert parsed("x", RLINF_HOSTS="a,").hosts is None


def test_what_the_launcher_sets_in_its_processes_is_no_flag() -> None:
    assert not {flag.variable for flag in FLAGS} & set(RESERVED)


# --- wrong usage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--nodes 2 x", "unknown flag '--nodes'; did you mean '--nnodes'?"),
        ("--log_dri x y", "unknown flag '--log_dri'; did you mean '--log-dir'?"),
        ("--start-timout=3 x", "unknown flag '--start-timout'; did you mean '--start-timeout'?"),
        ("-hosts a x", "unknown flag '-hosts'\n  fix: write --hosts, with two dashes"),
        ("-log_dir=a x", "fix: write --log-dir, with two dashes"),
        ("-z x", "unknown flag '-z'"),
        ("-vz x", "unknown flag '-z' in '-vz'"),
        ("-x A=1 t", "fix: write -e NAME=VALUE"),
        ("--nproc_per_node 8 x", "fix: slots are said per host: node01 slots=8"),
        ("- x", "the script cannot come from stdin"),
        ("", "no script is named\n  fix: rlinf-launch [options] train.py"),
        ("--", "no script is named"),
        ("-q", "no script is named"),
        ("-n", "-n needs a value\n  fix: write --nnodes=N"),
        ("--log-dir --json x", "--log-dir needs a value"),
        ("--hosts -- x", "--hosts needs a value"),
        ("--hosts= x", "--hosts: the value is empty"),
        ("-n 1:4 x", "-n: '1:4' is not a number from 1"),
        ("-n 0 x", "-n: '0' is not a number from 1"),
        ("--local-nodes 1025 x", "--local-nodes: '1025' is not a number from 1 to 1024"),
        ("--local-nodes=² x", "'²' is not a number"),
        ("--ssh-port 65536 x", "--ssh-port: '65536' is not a number from 1 to 65535"),
        ("--start-timeout=-1 x", "--start-timeout: '-1' is not a number of seconds"),
        ("--timeout soon x", "--timeout: 'soon' is not a number of seconds"),
        ("--start-timeout 1e12 x", "'1e12' is not a number of seconds up to 1e+09"),
        ("--start-timeout nan x", "'nan' is not a number of seconds"),
        ("--start-timeout 5m x", "'5m' is not a number of seconds"),
        ("--tee some x", "--tee: 'some' is not a rank"),
        ("--tee 3-1 x", "--tee: '3-1' is not a rank"),
        ("--env 2A=1 x", "--env: '2A' cannot name a variable"),
        ("--ssh-user me@host x", "'me@host' is not a user name"),
        ("--ssh-user=-oProxyCommand x", "'-oProxyCommand' is not a user name"),
        ('--ssh-args "-o \'x" x', "--ssh-args: cannot read"),
        ("--iface 'eth 0' x", "'eth 0' is not an interface"),
        ("--json=maybe x", "--json: 'maybe' is neither yes nor no"),
        ("--port-range 20000 x", "--port-range: '20000' is no range of ports"),
        ("--port-range 2-1 x", "--port-range: '2-1' is no range of ports from 1024 to 65535"),
        ("--launcher slurm x", "--launcher: 'slurm' is no way to a host\n  fix: write ssh, srun or auto"),
        ("--prologue 'a\nb' x", "--prologue: it has several lines\n  fix: write ';' between"),
        ("--sweep ../x", "--sweep: '../x' is not a run's id"),
        ("--sweep 0123abcd x", "--sweep 0123abcd runs no script, but 'x' is named"),
        ("--force x", "--force forces nothing\n  fix: leave it out, or name the run to sweep: --sweep RUN --force"),
        ("--hosts a, --local-nodes 2 x", "exclude each other"),
    ],
)
def test_wrong_usage_names_the_flag_the_value_and_the_fix(line: str, words: str) -> None:
    text = refusal(line)
    assert words in text
    assert "\n  fix: " in text


@pytest.mark.parametrize("line", ["--check", "--dry-run", "--sweep 0123abcd", "--help", "--version"])
def test_what_is_done_instead_of_a_run_needs_no_script(line: str) -> None:
    assert parsed(line).script is None


@given(st.lists(st.one_of(st.sampled_from([s for f in FLAGS for s in f.spellings]), st.text("-=na0_ ", max_size=5))))
def test_any_words_are_options_or_an_error_with_a_fix(argv: list[str]) -> None:
    try:
        assert isinstance(parse(argv, {}), Options)
    except ConfigError as error:
        assert "\n  fix: " in str(error)  # noqa: PT017


# --- help ---------------------------------------------------------------------------------------------------


def test_the_help_fits_and_shows_flags_and_exported_variables() -> None:
    text = help_text()
    for flags in GROUPS.values():
        for flag in flags:
            assert flag.help.split()[0] in text
            for spelling in flag.spellings:
                assert re.search(rf"(?m)^  .*{re.escape(spelling)}\b", text)
    assert set(EXPORTED) <= set(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_no_spelling_belongs_to_two_flags() -> None:
    spellings = [spelling for flag in FLAGS for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings))


# --- the variables that travel ------------------------------------------------------------------------------

SHELL = {
    "NCCL_DEBUG": "INFO",
    "HF_HOME": "/hf",
    "WANDB_API_KEY": "hush",
    "PYTHONPATH": "/src",
    "RLINF_MY_SETTING": "1",
    "RLINF_RUN_ID": "0123abcd",
    "RLINF_NODE_SOCKET": "/run/x",
    "CUDA_VISIBLE_DEVICES": "0",
    "CUDA_LAUNCH_BLOCKING": "1",
    "OMP_NUM_THREADS": "2",
    "OMP_PROC_BIND": "true",
    "http_proxy": "http://proxy",
    "HTTPS_PROXY": "http://proxy",
    "HOME": "/home/me",
    "PATH": "/bin",
    "MY_VAR": "x",
    "BASH_FUNC_NCCL_%%": "() { :; }",
}
DEFAULT = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "HF_HOME": "/hf",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "2",
    "PYTHONPATH": "/src",
    "RLINF_MY_SETTING": "1",
    "WANDB_API_KEY": "hush",
}


def test_the_default_variables_travel_and_nothing_else() -> None:
    assert exported(SHELL, Options()) == DEFAULT
    assert list(exported(SHELL, Options())) == sorted(DEFAULT)


def test_patterns_never_export_variables_of_one_machine() -> None:
    assert exported(SHELL, parsed("--export 'MY_*' --export '!WANDB_*' --export '!NCCL_DEBUG' x")) == {
        **{name: value for name, value in DEFAULT.items() if name not in ("WANDB_API_KEY", "NCCL_DEBUG")},
        "MY_VAR": "x",
    }
    everything = exported(SHELL, parsed("--export '*' x"))
    assert everything == {**DEFAULT, "MY_VAR": "x", "OMP_PROC_BIND": "true"}
    assert not set(everything) & {"HOME", "PATH", "CUDA_VISIBLE_DEVICES", "http_proxy", "HTTPS_PROXY"}
    assert "CUDA_VISIBLE_DEVICES" in OWN_TO_A_MACHINE


def test_named_variables_win_over_files_and_files_over_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "vars"
    path.write_text("NCCL_DEBUG=WARN\nHF_HOME=/other\n")
    result = exported(SHELL, parsed(f"--env-file {path} -e HF_HOME=/mine -e PATH -e CUDA_VISIBLE_DEVICES=1 x"))
    assert result == {**DEFAULT, "NCCL_DEBUG": "WARN", "HF_HOME": "/mine", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}


def test_a_variable_that_is_to_be_copied_must_be_set() -> None:
    with pytest.raises(ConfigError, match="-e GONE: GONE is not set here"):
        exported(SHELL, parsed("-e GONE x"))


def test_what_the_launcher_sets_cannot_be_given() -> None:
    with pytest.raises(ConfigError, match="RLINF_RUN_ID is set by the launcher"):
        exported(SHELL, parsed("-e RLINF_RUN_ID=1 x"))


def test_a_file_of_variables_takes_comments_quotes_and_export(tmp_path: Path) -> None:
    path = tmp_path / "vars"
    path.write_text("# comment\n\nA=1\nexport B='two words'\n C= x \nD=\"a=#b\"\nE=\n")
    assert read_env_file(path) == {"A": "1", "B": "two words", "C": " x", "D": "a=#b", "E": ""}


@pytest.mark.parametrize("line", ["just words", "2A=1", "=1", "A B=1"])
def test_a_bad_line_of_variables_is_named_with_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "vars"
    path.write_text(f"A=1\n{line}\n")
    with pytest.raises(ConfigError, match=r"vars:2:1: .* is not NAME=value"):
        read_env_file(path)


def test_a_file_of_variables_has_the_lines_of_an_editor_and_no_zero_byte(tmp_path: Path) -> None:
    path = tmp_path / "vars"
    path.write_bytes("A=a\fb\u2028c\r\nB=x\0y\n".encode())
    with pytest.raises(ConfigError, match=r"vars:2:4: a zero byte stands here"):
        read_env_file(path)
    path.write_bytes("A=a\fb\u2028c\r\n".encode())
    assert read_env_file(path) == {"A": "a\fb\u2028c"}


def test_a_missing_file_of_variables_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone: cannot read the variables: .*No such file"):
        read_env_file(tmp_path / "gone")


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "my_secret", "DB_PASSWORD", "PASSWD"])
def test_a_secret_value_is_not_shown(name: str) -> None:
    assert shown(name, "hush") == "***"
    assert shown("NCCL_DEBUG", "INFO") == "INFO"
