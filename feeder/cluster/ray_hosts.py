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

from feeder.cluster.command import last_line
from feeder.cluster.host_actor import HostActor
from feeder.cluster.policy.plan import Launch
from feeder.cluster.settings import Kept, Request, serve_options
from feeder.errors import PeerError
from feeder.installation import install_command

_KEPT_KEY = "feeder-cluster"
_THREADS = 4  # of an actor: watches of this controller and of the one before, and the end


class GoneError(Exception):
    """Raised when an actor is dead, with the reason."""


class AwayError(Exception):
    """Raised when an actor cannot be reached now, and may be again."""


def find_hosts(resource: str) -> dict[str, str]:
    """The hosts that live and offer the resource: their addresses by id."""
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in _nodes()
        if node["Resources"].get(resource, 0) >= 1
    }


def find_head() -> str:
    for node in _nodes():
        if "node:__internal_head__" in node["Resources"]:
            return str(node["NodeManagerAddress"])
    raise PeerError("the Ray cluster has no head: see `ray status`")


def _nodes() -> list[dict[str, Any]]:
    nodes: Any = ray.nodes  # has no annotations
    return [node for node in nodes() if node["Alive"]]


def start_actor(launch: Launch, request: Request) -> Any:
    """Begin to start the actor of a launch on its host; its handle, at once."""
    return (
        ray.remote(HostActor)
        .options(
            name=launch.actor,
            namespace=request.namespace,
            lifetime="detached",  # the controller's death must not end feeders
            max_restarts=0,  # the plan decides where to launch again
            num_cpus=0,
            resources={request.resource: 1},
            max_concurrency=_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(launch.host_id, soft=False),
        )
        .remote(request.config_toml, serve_options(request, launch))
    )


def find_actor(name: str, namespace: str) -> Any | None:
    """The handle of a named actor; None if there is none."""
    try:
        return ray.get_actor(name, namespace)
    except ValueError:
        return None


def kill_actor(handle: Any) -> None:
    """End an actor's process, wherever it is; its daemon goes with it."""
    ray.kill(handle, no_restart=True)


def wait_for(futures: Sequence[Any], timeout_s: float) -> list[Any]:
    """The futures that are done, after ``timeout_s`` if none is before."""
    ray.wait(list(futures), num_returns=1, timeout=timeout_s)
    done, _ = ray.wait(list(futures), num_returns=len(futures), timeout=0)
    return list(done)


def result_of(future: Any) -> Any:
    """What a call to an actor returned; GoneError, AwayError."""
    try:
        return ray.get(future, timeout=1)
    except ActorUnavailableError as error:
        raise AwayError(str(error)) from None
    except RayActorError as error:
        raise GoneError(_explain_death(str(error))) from None
    except RayError as error:
        raise GoneError(f"its actor failed: {last_line(str(error))}") from None


def _explain_death(text: str) -> str:
    if "No module named 'feeder" in text:
        return (
            "Feeder is not installed in the Python that Ray runs there; here it is by "
            f"`{install_command('daemon', 'ray')}`"
        )
    if "node" in text.lower() and "die" in text.lower():
        return "the host was lost"
    return f"its actor died: {last_line(text)}"


def keep(kept: Kept, namespace: str) -> None:
    _internal_kv_put(_KEPT_KEY, msgspec.json.encode(kept), overwrite=True, namespace=namespace)


def load_kept(namespace: str) -> Kept | None:
    """What an earlier controller stored, None without one."""
    data = _internal_kv_get(_KEPT_KEY, namespace=namespace)
    try:
        return msgspec.json.decode(data, type=Kept) if data else None
    except msgspec.ValidationError:
        return None  # of another version of Feeder


def clear(namespace: str) -> None:
    """End what an earlier controller left, and forget it."""
    kept = load_kept(namespace)
    for launch in kept.launches if kept is not None else ():
        handle = find_actor(launch.actor, namespace)
        if handle is not None:
            kill_actor(handle)
    _internal_kv_del(_KEPT_KEY, namespace=namespace)
