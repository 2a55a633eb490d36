"""What ``feeder cluster up`` gives the controller, and what the controller keeps in Ray. Pure."""

from msgspec import Struct, json


class Settings(Struct, frozen=True, kw_only=True):
    """All that a controller needs, fixed until the feeders are ended."""

    config_toml: str
    """The effective configuration of every feeder."""
    binds: tuple[str, ...]
    is_insecure: bool
    secret_key: str
    client_keys: str
    feeders: int
    """Wanted at first."""
    resource: str
    namespace: str
    endpoints_file: str
    """Empty for none."""
    lookup_port: int
    """0 for no look-up."""


class LaunchRecord(Struct, frozen=True, kw_only=True):
    """A launch, for the controller that comes after this one."""

    launch: int
    slot: int
    host_id: str
    address: str


class Kept(Struct, frozen=True, kw_only=True):
    """What survives the controller, and with an external Redis the head."""

    wanted: int
    launches: tuple[LaunchRecord, ...] = ()


def encode_kept(kept: Kept) -> bytes:
    """Return it as JSON."""
    return json.encode(kept)


def decode_kept(data: bytes) -> Kept:
    """Return what ``encode_kept`` encoded; msgspec.ValidationError for anything else."""
    return json.decode(data, type=Kept)
