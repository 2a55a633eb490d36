"""The configuration: accepted and refused values, error messages, precedence."""

import dataclasses
from pathlib import Path

import pytest

from feeder.daemon.config import (
    COMMAND_LINE,
    DEFAULT,
    Config,
    format_effective,
    load_config,
)
from feeder.daemon.config_keys import format_size, parse_metrics_address, parse_size
from feeder.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "feeder.toml"


def load(file: Path, text: str, overrides: dict[str, object] | None = None) -> Config:
    file.write_text(text)
    return load_config(file, overrides or {})


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
        ("serve.slots_bytes", "512 MiB", 512 << 20),
        ("serve.lease_s", "2.5", 2.5),
        ("serve.decoder", "turbojpeg", "turbojpeg"),
        ("log_level", "debug", "debug"),
    ],
)
def test_command_line_text_is_read_as_the_kind_of_the_key(
    key: str, text: str, value: object
) -> None:
    config = load_config(None, {key: text})
    holder = config.serve if key.startswith("serve.") else config
    assert getattr(holder, key.rpartition(".")[2]) == value


def test_relative_folders_start_at_the_file_or_the_working_directory(file: Path) -> None:
    overrides: dict[str, object] = {"data": {"b": "three", "c": "{a,b}/*.tar"}}
    text = '[data]\na = "shard-{000..009}.tar"\nb = "/two"\n"v1.2" = "s3://bucket//x"\n'
    config = load(file, text + '[cache]\ndir = "packed"', overrides)
    assert config.data == {
        "a": f"{file.parent}/shard-{{000..009}}.tar",
        "b": str(Path.cwd() / "three"),
        "c": f"{Path.cwd()}/{{a,b}}/*.tar",
        "v1.2": "s3://bucket//x",
    }
    assert config.provenance["data.a"] == str(file)
    assert config.provenance["data.b"] == COMMAND_LINE
    assert config.cache.dir == str(file.parent / "packed")
    assert load(file, "", {"cache.dir": "here"}).cache.dir == str(Path.cwd() / "here")


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
        ('[weights."a\\u0007"]\nbig = 3', "is not a client: write a key's name"),
        (f"[weights.alice]\n{'j' * 129} = 3", "is not a job's name: use 128 characters"),
        ("[serve]\nworker = 2", "there is no key serve.worker: did you mean serve.workers?"),
        ("[server]\nworkers = 2", "there is no key server: did you mean [serve]?"),
        (
            "[serve]\nxyzzy = 2",
            "there is no key serve.xyzzy: known are log_level, log_format, serve.bind",
        ),
        (
            "[cache]\ndecoded_bytes = 1000",
            'cache.decoded_bytes is 1000: allowed is a size 1 MiB .. 64 TiB such as "4 GiB", '
            '"1.5 GB" or 1048576 (bytes), or 0, or "auto"',
        ),
        ("[serve]\nworkers = true", "serve.workers is true: allowed is a whole number 1 .. 1024"),
        ("[serve.workers]\na = 1", 'serve.workers is {"a": 1}: allowed is'),
        ("[serve]\nname = 'pod 1'", 'serve.name is "pod 1": allowed is letters, digits and . _ -'),
        ("[serve]\nlease_s = nan", "serve.lease_s is NaN: allowed is a number 2 .. 3600"),
        ("[serve]\npin = '3-1'", 'serve.pin is "3-1": allowed is "auto", "off" or a list of CPUs'),
        ("[serve]\ndecoder = 'x'", 'serve.decoder is "x": allowed is one of "own", "turbojpeg"'),
        ("[serve]\nbind = []", "serve.bind is []: allowed is a list of different endpoints"),
        (f"[serve]\nbind = {[f'ipc:///{n}' for n in range(17)]}", '127.0.0.1:5555"], at most 16'),
        ("[serve]\nbind = ['tcp://0.0.0.0:5555']", "tcp://0.0.0.0:5555"),
        ("[serve]\npeers = 'file:///f'", 'serve.peers is "file:///f": allowed is a list of what'),
        ("[serve]\npeers = ['file://f']", "endpoint file://f: write file:// and an absolute path"),
        (
            "[serve]\npeers = ['file:///f']\nsecret_key = '/k'\nclient_keys = '/c'",
            "serve.peers and serve.secret_key are set and serve.peer_key is not: peers have",
        ),
        (
            "[serve]\npeers = ['file:///f']\npeer_key = '/k'",
            "serve.peers and serve.peer_key are set and serve.secret_key is not: peers have",
        ),
        ("[serve]\ntopology_root = 'x'", 'topology_root is "x": allowed is an absolute path'),
        ("[data]\n'a b' = '/x'", "'a b' is not a dataset name"),
        ("[data]\na = 1", "data.a is 1: allowed is the path of a dataset or source"),
        ("[cache]\ndir = 1", 'cache.dir is 1: allowed is a path, or "" for none'),
        ("x = " + "[" * 5000, "not valid TOML: values are nested too deeply"),
        ("serve.workers" + ".a" * 1500 + " = 1", "serve.workers is a value that is nested too"),
        ("[serve]\nworkers = " + "9" * 5000, "or a number has too many digits"),
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
        ({"serve.wrokers": "2"}, "command line: there is no key serve.wrokers: did you mean"),
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


def test_a_file_that_cannot_be_read_is_refused_with_its_reason(file: Path) -> None:
    for path, problem in (
        (file, "cannot be read: No such file"),
        (file.parent, "cannot be read: Is a directory"),
        (Path("/dev/zero"), "/dev/zero cannot be read: it is a character device"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_config(path, {})
    file.write_bytes(b"log_level = '\xff'")
    with pytest.raises(ConfigError, match="byte 13 is not UTF-8"):
        load_config(file, {})
    with pytest.raises(ConfigError, match=f"^{file}:2: not valid TOML: Expected '='"):
        load(file, "[serve]\nworkers 2\n")


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


@pytest.mark.parametrize("keys", [{}, {"serve.secret_key": "/k/s", "serve.client_keys": "/k/c"}])
def test_metrics_that_others_can_reach_need_a_token(keys: dict[str, object]) -> None:
    metrics = {"serve.metrics": "0.0.0.0:9464"}
    with pytest.raises(ConfigError, match=r"line: metrics: .* open to the network: set metrics_to"):
        load_config(None, {**keys, **metrics})
    load_config(None, {**keys, **metrics, "serve.metrics_token": "/t"})


@pytest.mark.parametrize(
    ("text", "address", "is_local"),
    [
        ("localhost:0", "127.0.0.1:0", True),
        ("[::1]:9464", "[::1]:9464", True),
        ("*:9464", "0.0.0.0:9464", False),
        ("10.1.2.3:80", "10.1.2.3:80", False),
    ],
)
def test_addresses_of_the_metrics(text: str, address: str, is_local: bool) -> None:
    parsed = parse_metrics_address(text)
    assert (str(parsed), parsed.is_local) == (f"tcp://{address}", is_local)


@pytest.mark.parametrize(
    "text", ["9464", ":9464", "127.0.0.1:65536", "host7:80", "[fe80::1%eth0]:80", "::1:80"]
)
def test_other_addresses_of_the_metrics_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^metrics: ") as caught:
        parse_metrics_address(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size_bytes", "shown"),
    [
        ("4GiB", 4 << 30, "4 GiB"),
        ("512 mib", 512 << 20, "512 MiB"),
        ("1.5 GB", 1_500_000_000, "1.5 GB"),
        ("1536 MiB", 3 << 29, "1.5 GiB"),
        ("1048577 B", 1_048_577, 1_048_577),
        ("0", 0, 0),
    ],
)
def test_a_size_is_a_number_and_a_unit_and_shown_in_the_largest_exact_one(
    text: str, size_bytes: int, shown: str | int
) -> None:
    assert parse_size(text) == size_bytes
    assert format_size(size_bytes) == shown


@pytest.mark.parametrize("text", ["", "4 G", "-4 GiB", "1e9 B", "4,5 GB", "GiB", "٤ GB"])
def test_any_other_text_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
