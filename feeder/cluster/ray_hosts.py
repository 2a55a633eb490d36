"""What the controller does with Ray: hosts, actors, and the record that outlives it.

Everything here may wait for Ray's head as long as that is away, so only the controller's own thread
calls it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_put,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from feeder.cluster.host_actor import HostActor
from feeder.cluster.policy.events import Host
from feeder.cluster.policy.plan import name_feeder
from feeder.cluster.settings import Kept, LaunchRecord, decode_kept, encode_kept
from feeder.errors import PeerError
from feeder.installation import install_command

WATCH_S = 10.0
"""How long one call to an actor waits for a change; it must end, or abandoned ones pile up."""

_KEPT_KEY = "feeder-cluster"
_THREADS = 4  # of an actor: watches of this controller and of the one before, and the end


class GoneError(Exception):
    """Raised when an actor is dead, with the reason."""


class AwayError(Exception):
    """Raised when an actor cannot be reached now, and may be again."""


def find_hosts(resource: str) -> tuple[Host, ...]:
    """Return the hosts that live and offer the resource."""
    return tuple(
        Host(node["NodeID"], node["NodeManagerAddress"])
        for node in _nodes()
        if node["Alive"] and node["Resources"].get(resource, 0) >= 1
    )


def find_head() -> str:
    """Return the address of the head."""
    for node in _nodes():
        if node["Alive"] and "node:__internal_head__" in node["Resources"]:
            return str(node["NodeManagerAddress"])
    raise PeerError("the Ray cluster has no head: see `ray status`")


def _nodes() -> list[dict[str, Any]]:
    nodes: Any = ray.nodes  # has no annotations
    return list(nodes())


def start_actor(
    name: str, host: Host, resource: str, namespace: str, config_toml: str, options: Sequence[str]
) -> Any:
    """Begin to start an actor on a host; return its handle at once."""
    return (
        ray.remote(HostActor)
        .options(
            name=name,
            namespace=namespace,
            lifetime="detached",  # the controller's death must not end feeders
            max_restarts=0,  # the plan decides where to launch again
            num_cpus=0,
            resources={resource: 1},
            max_concurrency=_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(host.id, soft=False),
        )
        .remote(config_toml, options)
    )


def name_actor(record: LaunchRecord) -> str:
    """Return the name of a launch's actor, which no other launch has."""
    return f"{name_feeder(record.slot)}-{record.launch}"


def find_actor(name: str, namespace: str) -> Any | None:
    """Return the handle of a named actor, None if there is none."""
    try:
        return ray.get_actor(name, namespace)
    except ValueError:
        return None


def kill_actor(handle: Any) -> None:
    """End an actor's process, wherever it is; its daemon goes with it."""
    ray.kill(handle, no_restart=True)


def wait_for(futures: Sequence[Any], timeout_s: float) -> list[Any]:
    """Return the futures that are done, after ``timeout_s`` if none is before."""
    ray.wait(list(futures), num_returns=1, timeout=timeout_s)
    done, _ = ray.wait(list(futures), num_returns=len(futures), timeout=0)
    return list(done)


def result_of(future: Any) -> Any:
    """Return what a call to an actor returned; GoneError, AwayError."""
    try:
        return ray.get(future, timeout=1)
    except ActorUnavailableError as error:
        raise AwayError(str(error)) from None
    except RayActorError as error:
        raise GoneError(_explain(str(error))) from None
    except RayError as error:
        raise GoneError(f"its actor failed: {_last_line(str(error))}") from None


def _explain(text: str) -> str:
    if "No module named 'feeder" in text:
        return (
            "Feeder is not installed in the Python that Ray runs there; here it is by "
            f"`{install_command('daemon', 'ray')}`"
        )
    if "node" in text.lower() and "die" in text.lower():
        return "the host was lost"
    return f"its actor died: {_last_line(text)}"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason")


def keep(kept: Kept, namespace: str) -> None:
    """Store what a later controller needs."""
    _internal_kv_put(_KEPT_KEY, encode_kept(kept), overwrite=True, namespace=namespace)


def load_kept(namespace: str) -> Kept | None:
    """Return what an earlier controller stored, None without one."""
    data = _internal_kv_get(_KEPT_KEY, namespace=namespace)
    try:
        return decode_kept(data) if data else None
    except msgspec.ValidationError:
        return None  # of another version of Feeder


def clear(namespace: str) -> None:
    """End what an earlier controller left, and forget it."""
    kept = load_kept(namespace)
    for record in kept.launches if kept is not None else ():
        handle = find_actor(name_actor(record), namespace)
        if handle is not None:
            kill_actor(handle)
    _internal_kv_del(_KEPT_KEY, namespace=namespace)
