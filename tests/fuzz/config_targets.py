"""Input from users and jobs: configuration, states of loaders, endpoints, addresses of stores."""

import random
from typing import Any

from feeder.client.endpoints import check_endpoint, parse_list
from feeder.daemon.config import Config, format_effective, load_config
from feeder.errors import ConfigError
from feeder.node.endpoint import Endpoint, parse_endpoint
from feeder.store.address import StoreAddress, is_remote
from tests.fuzz.mutate import mutate_bytes, mutate_value
from tests.fuzz.target import Target, written
from trainer_client._state import LoaderState

# --- The configuration file ---------------------------------------------------------------------

_TOML = (
    b"""log_level = "info"
[serve]
bind = ["tcp://127.0.0.1:5555", "ipc:///run/feeder/socket"]
workers = 4
pin = "0-3,8"
window_max = 16
chunk_images = 32
slots_bytes = 1_073_741_824
clients_max = 64
lease_s = 15.0
drain_s = 4
open_shards = 512
decoder = "turbojpeg"
topology_root = "/"
[cache]
decoded_bytes = "auto"
[data]
imagenet = "/data/imagenet"
"val.2" = 'relative/"folder"'
""",
    b'[serve]\nworkers = "auto"\nslots_bytes = "auto"\n[data]\na = "b"\n',
    b'serve.pin = "off"\ndata.x-1 = "/d\\u00e9 \\U0001F600"\n',
)
_TOML_TOKENS = (
    *(b"= [", b"[[serve]]", b"{}", b"{a = {b = {", b'"""', b"'''", b"nan", b"-inf", b"1e999"),
    *(b"0x" + b"f" * 5000, b"9" * 5000, b"-1", b"true", b"1979-05-27T07:32:00Z", b"\\u0000"),
    *(b"\\u009b", b"\\u007f", b"\\u202e", b"\\ud800", b"\xff", b"\x00", b"\r", b"\t", b"#", b"\n"),
    *(b"[" * 3000, b"a." * 500, b"a." * 3000, b"{a=" * 2000, b"0-999999," * 200, b'"auto"'),
    *(b"workers", b"[serve]\n", b"[cache]\n", b"[data]\n", b"x" * 3000, b"serve.workers"),
)


def _toml(rng: random.Random) -> bytes:
    text = rng.choice(_TOML)
    if rng.random() < 0.3:
        keys = [b"serve.workers", b"serve.bind", b"data.x", b"unknown", b"serve.pin", b'"a\\nb"']
        text = b" ".join((rng.choice(keys), b"=", rng.choice(_TOML_TOKENS), b"\n", text))
    return mutate_bytes(rng, text, tokens=_TOML_TOKENS, others=_TOML)


def _hold_file(config: Config, _: bytes) -> None:
    """It survives printing and loading."""
    again = written(format_effective(config).encode(), "again.toml")
    assert _values(load_config(again, {})) == _values(config)


def _values(config: Config) -> tuple[object, ...]:
    return config.serve, config.cache, dict(config.data), config.log_level


# --- The state of a loader, from a checkpoint ---------------------------------------------------

_STATE = LoaderState(
    epoch=3,
    step=5,
    world_size=8,
    batch_size=32,
    order_batch_size=256,
    lanes=512,
    working_set=156_180,
    piece=64,
    seed=7,
    dataset="imagenet",
    fingerprint="f" * 32,
    recipe="r" * 32,
)


def _read_state(state: Any) -> LoaderState:
    parsed = LoaderState.parse(state)
    parsed.check_order(_STATE)
    parsed.check_global_batch(_STATE)
    return parsed


def _hold_state(state: LoaderState, _: object) -> None:
    assert LoaderState.parse(state.to_dict()) == state


# --- Endpoints ----------------------------------------------------------------------------------

_ENDPOINTS = (
    b"tcp://127.0.0.1:5555",
    b"tcp://[::1]:0",
    b"tcp://localhost:80",
    b"ipc:///run/feeder/socket",
)
_ENDPOINT_TOKENS = (
    *(b"tcp://", b"ipc://", b":", b"[", b"]", b"*", b"0.0.0.0", b"::", b"::ffff:127.0.0.1"),
    *(b"%eth0", b"%\n", b"9" * 5000, b"\x00", b"\n", b"\xff", b"/" * 200, "٣".encode(), b" "),
    *("\N{LATIN SMALL LETTER LONG S}".encode(), b"\x1b[31m", b"x" * 3000, b"\xed\xa0\x80"),
)


def _text(rng: random.Random, seeds: tuple[bytes, ...], tokens: tuple[bytes, ...]) -> str:
    data = mutate_bytes(rng, rng.choice(seeds), tokens=tokens, others=seeds)
    return data.decode(errors=rng.choice(("surrogateescape", "surrogatepass", "replace")))


def _endpoint(rng: random.Random) -> str:
    try:
        return _text(rng, _ENDPOINTS, _ENDPOINT_TOKENS)
    except UnicodeDecodeError:
        return "tcp://\udcff:\ud800"


def _read_endpoint(text: str) -> Endpoint:
    endpoint = parse_endpoint(text)
    endpoint.for_node(3)
    return endpoint


def _hold_endpoint(endpoint: Endpoint, _: str) -> None:
    assert str(endpoint).isprintable() or endpoint.transport == "ipc"
    assert parse_endpoint(str(endpoint)) == endpoint


_ENDPOINT_LIST = (
    b"# the feeders of this job\ntcp://host-1.example:5555\n\ntcp://[fe80::1%eth0]:1  # and one\n"
    b"ipc:///run/feeder/socket\n"
)


def _endpoint_list(rng: random.Random) -> bytes:
    tokens = (*_ENDPOINT_TOKENS, b"\ntcp://", b"\nipc:///", b"#")
    return mutate_bytes(rng, _ENDPOINT_LIST, tokens=tokens, others=_ENDPOINTS)


def _hold_list(endpoints: dict[str, Any], _: bytes) -> None:
    """They can be connected to."""
    assert all(check_endpoint(endpoint) == endpoint for endpoint in endpoints)


# --- Addresses of stores --------------------------------------------------------------------------

_ADDRESSES = (
    b"s3://bucket/prefix/name",
    b"gs://bucket",
    b"az://$root/a b",
    b"https://host.example:443/a/b",
    b"http://[::1]:9000/a",
)
_ADDRESS_TOKENS = (*_ENDPOINT_TOKENS, b"//", b"/../", b"?sig=", b"#", b"@", b"s3://", b"HTTPS://")


def _address(rng: random.Random) -> str:
    try:
        return _text(rng, _ADDRESSES, _ADDRESS_TOKENS)
    except UnicodeDecodeError:
        return "s3://\udcff/\ud800"


def _read_address(text: str) -> StoreAddress:
    is_remote(text)
    return StoreAddress.parse(text)


def _hold_address(address: StoreAddress, _: str) -> None:
    assert address.url.isprintable()
    assert is_remote(address.url)
    assert StoreAddress.parse(address.url) == address
    assert address.child("name").name == "name"


TARGETS = (
    Target(
        "config-file",
        _toml,
        lambda data: load_config(written(data), {}),
        30_000,
        ConfigError,
        _hold_file,
    ),
    Target(
        "loader-state",
        lambda rng: mutate_value(rng, _STATE.to_dict(), edits_max=4),
        _read_state,
        30_000,
        ConfigError,
        _hold_state,
    ),
    Target("endpoint", _endpoint, _read_endpoint, 50_000, ConfigError, _hold_endpoint),
    Target(
        "endpoint-list",
        _endpoint_list,
        lambda content: parse_list(content, "file"),
        40_000,
        ConfigError,
        _hold_list,
    ),
    Target(
        "store-address",
        _address,
        _read_address,
        40_000,
        ConfigError,
        _hold_address,
    ),
)
