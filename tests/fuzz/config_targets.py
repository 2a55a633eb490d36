"""Input from users, jobs and the system: configuration, recipes, states, endpoints, topology."""

import math
import random
import tempfile
from pathlib import Path
from typing import Any

from feeder.client.endpoints import check_endpoint, parse_list
from feeder.daemon.config import Config, format_effective, load_config
from feeder.errors import ConfigError, ResourceError
from feeder.host.placement import parse_pin
from feeder.host.topology import read_topology, usable_cpus
from feeder.node.endpoint import Endpoint, parse_endpoint
from feeder.plan.recipe import Recipe, parse_field
from tests.fuzz.mutate import VALUES, mutate_bytes, mutate_value
from tests.fuzz.target import Target, folder, reads, refusal, written
from tests.support.machine_tree import cgroup_v1, cgroup_v2, node
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


_OVERRIDES = {
    "serve.bind": ("tcp://127.0.0.1:0",),
    "serve.workers": "4",
    "serve.pin": "0-3",
    "serve.lease_s": "2.5",
    "serve.slots_bytes": "auto",
    "serve.decoder": "own",
    "serve.topology_root": "/",
    "log_level": "debug",
    "cache.decoded_bytes": "0",
    "data": {"name": "folder"},
}


def _overrides(rng: random.Random) -> dict[str, Any]:
    given = {key: _OVERRIDES[key] for key in rng.sample(sorted(_OVERRIDES), rng.randint(1, 4))}
    for key, value in given.items():
        if isinstance(value, str) and rng.random() < 0.7:
            text = mutate_bytes(rng, value.encode(), tokens=_TOML_TOKENS, edits_max=2)
            given[key] = text.decode(errors="surrogateescape")  # as in sys.argv
        elif isinstance(value, dict) and rng.random() < 0.7:
            name = mutate_bytes(rng, b"name", tokens=_TOML_TOKENS).decode(errors="surrogateescape")
            given[key] = {name: "folder\udcff"}
    return given


# --- Recipes ------------------------------------------------------------------------------------

_FIELDS: dict[str, Any] = {
    "batch_size": 256,
    "image_size": 224,
    "crop": "centre",
    "scale": [0.08, 1.0],
    "ratio": [0.75, 1.33],
    "resize_size": 256,
    "flip_probability": 0.5,
    "partial_decode": True,
    "dct_scaling": False,
    "shuffle": True,
    "last_batch": "pad",
    "interpolation": "bicubic",
    "auto_augment": "rand-augment",
    "rand_augment_ops": 2,
    "brightness": 0.4,
    "contrast": [0.6, 1.4],
    "hue": 0.1,
    "erasing_value": [1, 2, 3],
    "erasing_scale": [0.02, 0.3],
}


def _recipe_fields(rng: random.Random) -> dict[str, Any]:
    fields = {name: _FIELDS[name] for name in rng.sample(sorted(_FIELDS), rng.randint(0, 6))}
    fields = {"batch_size": 8, **fields}
    if rng.random() < 0.8:
        name = rng.choice(sorted(_FIELDS))
        value = mutate_value(rng, _FIELDS[name]) if rng.random() < 0.7 else rng.choice(VALUES)
        fields[name] = value
    if rng.random() < 0.3:
        fields["parse"] = mutate_bytes(
            rng,
            rng.choice((b"scale=[0.1, 1]", b"crop=centre", b"hue=0.1")),
            tokens=(b"=", b"NaN", b"[" * 3000, b"9" * 5000, b"1e999", b'"\\ud800"'),
        ).decode(errors="surrogateescape")
    if rng.random() < 0.1:
        fields[rng.choice(("", "a\nb", "batchsize", "x" * 3000))] = 1
    return fields


def _read_recipe(fields: dict[str, Any]) -> Recipe:
    given = dict(fields)
    if "parse" in given:
        name, value = parse_field(given.pop("parse"))
        given[name] = value
    return Recipe.for_split("train", **given)


def _hold_recipe(recipe: Recipe, _: object) -> None:
    assert len(recipe.fingerprint()) == 32
    assert 1 <= recipe.batch_size <= 65_536
    assert all(math.isfinite(bound) for bound in (*recipe.scale, *recipe.ratio, *recipe.hue))


# --- The state of a loader, from a checkpoint ---------------------------------------------------

_STATE = LoaderState(
    epoch=3,
    step=5,
    world_size=8,
    batch_size=32,
    order_batch_size=256,
    lanes=512,
    seed=7,
    dataset="imagenet",
    fingerprint="f" * 32,
    recipe="r" * 32,
)


def _read_state(state: Any) -> LoaderState:
    parsed = LoaderState.parse(state)
    parsed.check_order(_STATE, former=_STATE.fingerprint)
    parsed.check_global_batch(_STATE)
    return parsed


def _hold_state(state: LoaderState, _: object) -> None:
    assert LoaderState.parse(state.to_dict()) == state


# --- Endpoints and lists of CPUs ----------------------------------------------------------------

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


_CPULISTS = (b"0-3,8", b"0", b"", b"0-999999", b"auto", b"off", b" 1 , 3-4 ")
_CPU_TOKENS = (b"-", b",", b"0-999999,", b"9" * 5000, "٣".encode(), b"\n", b"\x00", b"3-1")


def _cpulist(rng: random.Random) -> str:
    data = mutate_bytes(rng, rng.choice(_CPULISTS), tokens=_CPU_TOKENS, edits_max=6)
    if rng.random() < 0.01:
        data += b",0-999999" * 2000
    return data.decode(errors="surrogateescape")


# --- The machine --------------------------------------------------------------------------------

_ONLINE = {"sys/devices/system/cpu/online": "0-7"}
_TREES: tuple[dict[str, str], ...] = (
    node(0, "0-3", 1 << 20, "10 21") | node(1, "4-7", 1 << 20, "21 10"),
    node(0, "0-3", 1 << 20, "10 21") | node(1, "", 1 << 20, "21 10"),
    _ONLINE | cgroup_v2("/a/b", {"a": "150000 100000", "a/b": "max 1"}),
    _ONLINE | cgroup_v1("/a", {"a": (50_000, 100_000)}),
    cgroup_v2("/a\\040b", {"a b": "100000 100000"}, shown="/a\\040b"),
)
_TREE_TOKENS = (
    *(b"-1", b"0", b" 0", b"9" * 5000, b"\n", b":", b"::", b"\\000", b"\\777", b"..", b"/../"),
    *(b"max", b" - cgroup2 x y", b"\xff", b"\x00", b"/" * 300, b"a" * 300, "٣".encode(), b"nan"),
)


def _tree(rng: random.Random) -> dict[str, bytes]:
    tree = {name: text.encode() for name, text in rng.choice(_TREES).items()}
    for name in rng.sample(sorted(tree), min(len(tree), rng.choice((1, 1, 2)))):
        tree[name] = mutate_bytes(rng, tree[name], tokens=_TREE_TOKENS, edits_max=2)
    if rng.random() < 0.05:
        tree["sys/devices/system/node/node" + rng.choice(("٣", "007", "9" * 200, "x"))] = b""
    return tree


def _check_tree(tree: dict[str, bytes]) -> bool:
    """A topology and a count of CPUs, or ResourceError of one line that names the file."""
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        root = Path(name)
        for path, content in tree.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        accepted = True
        for read in (read_topology, lambda root: usable_cpus(root, frozenset(range(4)))):
            try:
                read(root)
            except ResourceError as error:
                accepted = refusal(error, tree)
    return accepted


TARGETS = (
    Target(
        "config-file",
        _toml,
        reads(lambda data: load_config(written(data), {}), ConfigError, _hold_file),
        30_000,
    ),
    Target(
        "config-override",
        _overrides,
        reads(lambda given: load_config(None, given), ConfigError),
        30_000,
    ),
    Target("recipe", _recipe_fields, reads(_read_recipe, ConfigError, _hold_recipe), 30_000),
    Target(
        "loader-state",
        lambda rng: mutate_value(rng, _STATE.to_dict(), edits_max=4),
        reads(_read_state, ConfigError, _hold_state),
        30_000,
    ),
    Target("endpoint", _endpoint, reads(_read_endpoint, ConfigError, _hold_endpoint), 50_000),
    Target(
        "endpoint-list",
        _endpoint_list,
        reads(lambda content: parse_list(content, "file"), ConfigError, _hold_list),
        40_000,
    ),
    Target("cpu-list", _cpulist, reads(parse_pin, ConfigError), 20_000),
    Target("topology", _tree, _check_tree, 15_000),
)
