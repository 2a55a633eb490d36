"""The configuration: accepted and refused values, error messages, precedence."""

import dataclasses
import re
from pathlib import Path

import pytest

from feeder.daemon.config import (
    COMMAND_LINE,
    DEFAULT,
    Config,
    ServeConfig,
    format_effective,
    load_config,
)
from feeder.daemon.config_keys import parse_metrics_address
from feeder.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "feeder.toml"


def load(file: Path, text: str, overrides: dict[str, object] | None = None) -> Config:
    file.write_text(text)
    return load_config(file, overrides or {})


def test_without_a_file_all_values_are_defaults() -> None:
    config = load_config(None, {})
    assert config.serve == ServeConfig()
    assert (config.data, config.log_level) == ({}, "info")
    assert set(config.provenance.values()) == {DEFAULT}


def test_the_command_line_overrides_the_file_and_the_file_the_default(file: Path) -> None:
    text = "[serve]\nworkers = 3\nwindow_max = 8"
    config = load(file, text, {"serve.workers": "5", "serve.pin": None})
    assert (config.serve.workers, config.serve.window_max, config.serve.pin) == (5, 8, "auto")
    assert config.provenance["serve.workers"] == COMMAND_LINE
    assert config.provenance["serve.window_max"] == str(file)
    assert config.provenance["serve.pin"] == DEFAULT


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("serve.workers", "auto", "auto"),
        ("serve.workers", "7", 7),
        ("serve.slots_bytes", "1048576", 1_048_576),
        ("serve.lease_s", "2.5", 2.5),
        ("serve.pin", "0-3,8", "0-3,8"),
        ("serve.decoder", "turbojpeg", "turbojpeg"),
        ("serve.name", "pod-1.feeder_x", "pod-1.feeder_x"),
        ("log_level", "debug", "debug"),
    ],
)
def test_command_line_text_is_read_as_the_kind_of_the_key(
    key: str, text: str, value: object
) -> None:
    config = load_config(None, {key: text})
    holder = config.serve if key.startswith("serve.") else config
    assert getattr(holder, key.rpartition(".")[2]) == value


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("auto", "auto"), ("1048576", 1 << 20)])
def test_the_decoded_cache_is_off_sized_or_automatic(file: Path, text: str, value: object) -> None:
    assert load_config(None, {"cache.decoded_bytes": text}).cache.decoded_bytes == value
    toml = text if text.isdigit() else f'"{text}"'
    config = load(file, f"[cache]\ndecoded_bytes = {toml}")
    assert config.cache.decoded_bytes == value
    assert config.provenance["cache.decoded_bytes"] == str(file)


def test_relative_dataset_folders_start_at_the_file_or_the_working_directory(file: Path) -> None:
    overrides: dict[str, object] = {"data": {"b": "three", "c": "/four"}}
    config = load(file, '[data]\na = "one"\nb = "/two"\n"v1.2" = "x"', overrides)
    assert config.data == {
        "a": str(file.parent / "one"),
        "b": str(Path.cwd() / "three"),
        "c": "/four",
        "v1.2": str(file.parent / "x"),
    }
    assert config.provenance["data.a"] == str(file)
    assert config.provenance["data.b"] == COMMAND_LINE


def test_patterns_are_joined_and_urls_stay_as_they_are(file: Path) -> None:
    overrides: dict[str, object] = {"data": {"b": "gs://bucket//x", "c": "{a,b}/*.tar"}}
    config = load(file, '[data]\na = "shard-{000..009}.tar"\nd = "s3://bucket/x"', overrides)
    assert config.data == {
        "a": f"{file.parent}/shard-{{000..009}}.tar",
        "b": "gs://bucket//x",
        "c": f"{Path.cwd()}/{{a,b}}/*.tar",
        "d": "s3://bucket/x",
    }


def test_the_cache_folder_starts_at_the_file_or_the_working_directory(file: Path) -> None:
    assert load(file, "").cache.dir == ""
    assert load(file, '[cache]\ndir = "packed"').cache.dir == str(file.parent / "packed")
    config = load(file, '[cache]\ndir = "packed"', {"cache.dir": "here"})
    assert config.cache.dir == str(Path.cwd() / "here")


def test_weights_are_tables_of_jobs_by_client(file: Path) -> None:
    text = '[weights.alice]\nbig = 3\n"" = 0.5\n[weights."user 1000"]\n"a.b" = 2'
    config = load(file, text)
    assert config.weights == {"alice": {"big": 3.0, "": 0.5}, "user 1000": {"a.b": 2.0}}
    assert config.provenance["weights.alice"] == str(file)
    shown = format_effective(config)
    assert '[weights."user 1000"]' in shown
    assert load(file, shown).weights == config.weights


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights = 3", "weights is 3: it must be a table, [weights]"),
        ("[weights]\nbig = 3", "weights.big must be a table of its jobs"),
        (
            "[weights.alice]\nbig = 0",
            "the weight of job 'big' in [weights.alice] is not a number 0.01 .. 100",
        ),
        ("[weights.alice.big]\nx = 3", "the weight of job 'big' in [weights.alice] is not"),
        ('[weights."a\\u0007"]\nbig = 3', "is not a client: write a key's name"),
        (f"[weights.alice]\n{'j' * 129} = 3", "is not a job's name: use 128 characters"),
        ("[weight.alice]\nbig = 3", "did you mean [weights.CLIENT]?"),
        ("[serve]\nworker = 2", "there is no key serve.worker: did you mean serve.workers?"),
        ("workers = 2", "there is no key workers: did you mean serve.workers?"),
        (
            "[cache]\ndecoded = 2",
            "there is no key cache.decoded: did you mean cache.decoded_bytes?",
        ),
        ("cache = 2", "cache is 2: it must be a table, [cache]"),
        (
            "[cache]\ndecoded_bytes = 1000",
            'cache.decoded_bytes is 1000: allowed is a size 1 MiB .. 64 TiB such as "4 GiB", '
            '"1.5 GB" or 1048576 (bytes), or 0, or "auto"',
        ),
        ("[server]\nworkers = 2", "there is no key server: did you mean [serve]?"),
        ("[serve]\nlog_level = 'info'", "did you mean log_level?"),
        (
            "[serve]\nxyzzy = 2",
            "there is no key serve.xyzzy: known are log_level, log_format, serve.bind",
        ),
        ("serve = 2", "serve is 2: it must be a table, [serve]"),
        ("data = 'x'", 'data is "x": it must be a table, [data]'),
        (
            "[serve]\nworkers = '4'",
            'serve.workers is "4": allowed is a whole number 1 .. 1024, or "auto"',
        ),
        ("[serve]\nworkers = 0", "serve.workers is 0: allowed is a whole number 1 .. 1024"),
        ("[serve]\nworkers = true", "serve.workers is true: allowed is"),
        ("[serve.workers]\na = 1", 'serve.workers is {"a": 1}: allowed is'),
        ("[serve]\nwindow_max = 65", "serve.window_max is 65: allowed is a whole number 1 .. 64"),
        (
            "[serve]\nname = 'pod 1'",
            'serve.name is "pod 1": allowed is letters, digits and . _ -, 128 at most, or "" for '
            "the host's name",
        ),
        ("[serve]\nname = 7", "serve.name is 7: allowed is letters"),
        ("[serve]\nlease_s = nan", "serve.lease_s is NaN: allowed is a number 2 .. 3600"),
        ("[serve]\ndrain_s = 5", "serve.drain_s is 5: allowed is a number 0 .. 4.5"),
        ("[serve]\npin = '3-1'", 'serve.pin is "3-1": allowed is "auto", "off" or a list of CPUs'),
        (
            "[serve]\ndecoder = 'pillow'",
            'serve.decoder is "pillow": allowed is one of "own", "turbojpeg"',
        ),
        ("[serve]\ndecoder = true", "serve.decoder is true: allowed is one of"),
        ("[serve]\nbind = []", "serve.bind is []: allowed is a list of different endpoints"),
        (f"[serve]\nbind = {[f'ipc:///{n}' for n in range(17)]}", '127.0.0.1:5555"], at most 16'),
        ("[serve]\nbind = ['ipc:///a', 'ipc:///a']", "allowed is a list of different endpoints"),
        ("[serve]\nbind = ['tcp://0.0.0.0:5555']", "tcp://0.0.0.0:5555"),
        ("[serve]\ntopology_root = 'x'", 'topology_root is "x": allowed is an absolute path'),
        (
            "log_level = 'loud'",
            'log_level is "loud": allowed is one of "debug", "info", "warning", "error"',
        ),
        ("[data]\n'a b' = '/x'", "'a b' is not a dataset name"),
        ("[data]\na = 1", "data.a is 1: allowed is the path of a dataset or source"),
        ("[data.a]\nb = '/x'", 'data.a is {"b": "/x"}: allowed is the path of a dataset or'),
        ("[cache]\ndir = 1", 'cache.dir is 1: allowed is a path, or "" for none'),
        ("x = " + "[" * 5000, "not valid TOML: values are nested too deeply"),
        ("serve.workers" + ".a" * 1500 + " = 1", "serve.workers is a value that is nested too"),
        ("[serve]\nworkers = " + "9" * 5000, "or a number has too many digits"),
        ('"two\\nlines" = 1', 'there is no key "two\\nlines"'),
        ('[serve]\npin = "\\u009b31m"', 'serve.pin is "\\x9b31m": allowed is'),
    ],
)
def test_a_mistake_in_the_file_is_reported_in_one_line(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(file, text)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"serve.workers": "many"}, 'command line: serve.workers is "many": allowed is a whole'),
        ({"serve.decoder": "own "}, 'command line: serve.decoder is "own ": allowed is one of'),
        ({"serve.lease_s": "x"}, 'command line: serve.lease_s is "x": allowed is a number'),
        ({"serve.wrokers": "2"}, "command line: there is no key serve.wrokers: did you mean"),
        ({"data": "x"}, "command line: data is"),
        ({"data": {"": "x"}}, "'' is not a dataset name"),
        ({"serve.workers": "\udcff"}, 'serve.workers is "\\udcff": allowed is'),
    ],
)
def test_a_mistake_on_the_command_line_is_reported(
    overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, overrides)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[serve]\nworkers 2\n", ":2", "not valid TOML: Expected '='"),
        ("[serve]\nworkers = 1\nworkers = 2\n", ":3", "not valid TOML: Cannot overwrite a value"),
        ("[serve]\npin = 'auto", "", 'not valid TOML: Expected "\'" at the end of the file'),
    ],
)
def test_a_syntax_error_names_file_and_line(file: Path, text: str, line: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(file, text)
    assert str(error.value).startswith(f"{file}{line}: {message}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_utf8_is_refused(file: Path) -> None:
    file.write_bytes(b"log_level = '\xff'")
    with pytest.raises(ConfigError, match="byte 13 is not UTF-8"):
        load_config(file, {})


def test_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero cannot be read: it is a character device"):
        load_config(Path("/dev/zero"), {})


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "absent.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, {})


def test_the_printed_configuration_loads_again_and_shows_origins(
    file: Path, tmp_path: Path
) -> None:
    text = '[serve]\nbind = ["ipc:///run/ä\\"b"]\n[data]\n"v1.2" = "/x y"\nodd = "/\\u007f"'
    config = load(file, text, {"serve.lease_s": "20"})
    printed = format_effective(config)
    lines = [line.split("#") for line in printed.splitlines() if "#" in line]
    origin = {assignment.split()[0]: where.strip() for assignment, where in lines}
    assert (origin["bind"], origin["lease_s"], origin["workers"]) == (
        str(file),
        COMMAND_LINE,
        DEFAULT,
    )
    again = load(tmp_path / "again.toml", printed)
    assert dataclasses.replace(again, provenance={}) == dataclasses.replace(config, provenance={})


@pytest.mark.parametrize("endpoint", ["tcp://*:1", "tcp://[::]:1", "tcp://192.168.1.2:1"])
def test_endpoints_that_others_can_reach_need_keys_or_a_typed_flag(endpoint: str) -> None:
    binds = {"serve.bind": ("ipc:///s", endpoint)}
    keys = {"serve.secret_key": "/k/s", "serve.client_keys": "/k/c"}
    with pytest.raises(ConfigError, match=r"line: bind: .* open to the network.*CURVE.*--insecure"):
        load_config(None, binds)
    load_config(None, {**binds, **keys})
    load_config(None, binds, is_insecure=True)


@pytest.mark.parametrize(
    ("text", "address", "is_local"),
    [
        ("127.0.0.1:9464", "127.0.0.1:9464", True),
        ("[::1]:9464", "[::1]:9464", True),
        ("localhost:0", "127.0.0.1:0", True),
        ("*:9464", "0.0.0.0:9464", False),
        ("[::]:9464", "[::]:9464", False),
        ("10.1.2.3:80", "10.1.2.3:80", False),
    ],
)
def test_addresses_of_the_metrics(text: str, address: str, is_local: bool) -> None:
    parsed = parse_metrics_address(text)
    assert (str(parsed), parsed.is_local) == (f"tcp://{address}", is_local)


@pytest.mark.parametrize(
    "text",
    [
        "9464",
        ":9464",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "[::1]",
        "host7:80",
        "[fe80::1%eth0]:80",
        "http://127.0.0.1:80",
        "[*]:1",
        "::1:80",
    ],
)
def test_other_addresses_of_the_metrics_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^metrics: ") as caught:
        parse_metrics_address(text)
    assert "\n" not in str(caught.value)


def test_only_the_entry_point_reads_the_environment() -> None:
    """Configuration comes from file and command line; child processes inherit the environment.

    A client looks there only for what launchers say of its ranks.
    """
    root = Path(__file__).parents[2]
    readers = {
        str(path.relative_to(root))
        for package in ("feeder", "trainer_client")
        for path in (root / package).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"os\.(environ|getenv)", line) and "env={**os.environ, " not in line
    }
    assert readers == {
        "feeder/cli/cluster.py",  # RAY_ADDRESS, where Ray's own commands look, too
        "feeder/cli/main.py",  # sets thread numbers, before libraries are loaded
        "feeder/cli/serve.py",  # passes it to Notifier and find_cache_folder
        "feeder/cluster/pack_pool.py",  # as main.py
        "feeder/process/child.py",  # PYTHONPATH and thread numbers of children
        "trainer_client/_device.py",  # LOCAL_RANK, for the default device
        "trainer_client/_ranks.py",  # whether a launcher has started several processes
        "trainer_client/evaluate.py",  # sets how torch's threads wait, before torch is loaded
        "trainer_client/reference/parallel/reduction.py",  # LOCAL_WORLD_SIZE: the ranks of a host
        "trainer_client/train.py",  # as evaluate.py
    }
