"""``feeder cluster up|status|scale N|down``: feeders on the hosts of a Ray cluster."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.options import option
from feeder.errors import ConfigError, PeerError, ResourceError

if TYPE_CHECKING:
    from feeder.cluster.settings import Request

_TIMEOUT_S: Final = 30.0
_TIMEOUT_MIN_S: Final = 5.0
_TIMEOUT_MAX_S: Final = 3600.0
_FEEDERS_MAX: Final = 4096


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "cluster",
        help="run feeders on the hosts of a Ray cluster",
        description="Run `feeder serve` on the hosts of a Ray cluster that offer a resource, "
        "replace those that are lost, and publish where they are. See docs/ray.md.",
    )
    commands = parser.add_subparsers(dest="cluster_command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start feeders, one a host, and return once they serve")
    _add_common_options(up, needs_config=True)
    option(up, "--feeders N", "how many (default: on every host)", type=int)
    option(up, "--resource NAME", "what hosts must offer (default: feeder)")
    option(up, "--endpoints FILE", "keep the list of endpoints in this file", type=Path)
    lookup = "of the head, where clients look endpoints up; 0 for none (default: 5554)"
    option(up, "--lookup PORT", lookup, type=int)
    option(up, "--local", "start a Ray cluster on this machine first")
    status = commands.add_parser("status", help="show what runs where, and what does not and why")
    _add_common_options(status)
    option(status, "--json", "print everything as one JSON object")
    scale = commands.add_parser("scale", help="change the number of feeders")
    scale.add_argument("feeders", type=int, metavar="N")
    _add_common_options(scale)
    down = commands.add_parser("down", help="drain and end all feeders")
    _add_common_options(down)
    commands.add_parser("env", help="print the variables to set before `ray start`, for a shell")
    parser.set_defaults(run=run)


def _add_common_options(parser: argparse.ArgumentParser, *, needs_config: bool = False) -> None:
    text = "require that the feeders run with this configuration"
    if needs_config:
        text = "TOML file of every feeder, see feeder.toml"
    option(parser, "--config FILE", text, type=Path, required=needs_config)
    insecure = "with --config: allow every client that can reach a tcp address, unencrypted"
    option(parser, "--insecure", insecure)
    address = "of Ray's head (default: $RAY_ADDRESS, else the cluster of this machine)"
    option(parser, "--address HOST:PORT", address)
    option(parser, "--namespace NAME", "Ray's namespace (default: feeder)")
    timeout = f"time for the whole command (default: {_TIMEOUT_S:g})"
    option(parser, "--timeout S", timeout, type=float, default=_TIMEOUT_S)


def run(arguments: argparse.Namespace) -> int:
    """Perform the command and print its result; FeederError."""
    from feeder.cluster.settings import ENVIRONMENT

    if arguments.cluster_command == "env":
        print("\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items()))
        return 0
    from feeder.cluster.command import perform, start_local

    request = _read_request(arguments)
    if arguments.cluster_command == "up" and arguments.local:
        print("\n".join(start_local(request.address, request.timeout_s)))
    status = perform(request)
    if arguments.cluster_command == "down":
        print("the feeders have ended; Ray itself goes on (`ray stop` ends it on a host)")
        return 0
    if arguments.cluster_command == "status" and arguments.json:
        print(json.dumps(status, indent=2))
        return 0
    from feeder.cluster.show import describe_shortfall, format_status

    print("\n".join(format_status(status)))
    if arguments.cluster_command != "status":
        shortfall = describe_shortfall(status, request.timeout_s)
        if status.get("is_stuck"):
            raise ResourceError(shortfall)
        if status.get("is_late"):
            raise PeerError(shortfall)
    return 0


def _read_request(arguments: argparse.Namespace) -> "Request":
    from msgspec.structs import replace

    from feeder.cluster.settings import LOOKUP_PORT, NAMESPACE, RESOURCE, Request
    from feeder.daemon.config import format_effective, load_config

    timeout_s = arguments.timeout
    if not _TIMEOUT_MIN_S <= timeout_s <= _TIMEOUT_MAX_S:
        raise ConfigError(
            f"--timeout {timeout_s:g} is not within {_TIMEOUT_MIN_S:g} .. {_TIMEOUT_MAX_S:g} s"
        )
    feeders = getattr(arguments, "feeders", None)
    if feeders is not None and not 1 <= feeders <= _FEEDERS_MAX:
        raise ConfigError(f"{feeders} feeders: allowed are 1 .. {_FEEDERS_MAX}; `down` ends all")
    request = Request(
        do=arguments.cluster_command,
        address=choose_address(arguments.address),
        namespace=arguments.namespace or NAMESPACE,
        timeout_s=timeout_s,
        feeders=feeders or 0,
    )
    if arguments.config is None:
        return request
    config = load_config(arguments.config, {}, is_insecure=arguments.insecure)
    request = replace(request, config_toml=format_effective(config))
    if request.do != "up":
        return request
    if not config.data:
        raise ConfigError(
            f"{arguments.config}: there is nothing to serve: name datasets under [data]"
        )
    port = LOOKUP_PORT if arguments.lookup is None else arguments.lookup
    if not 0 <= port < 65_536:
        raise ConfigError(f"--lookup {port} is no port: 1 .. 65535, or 0 for none")
    return replace(
        request,
        binds=config.serve.bind,
        is_insecure=arguments.insecure,
        secret_key=config.serve.secret_key,
        client_keys=config.serve.client_keys,
        resource=arguments.resource or RESOURCE,
        endpoints_file=str(arguments.endpoints.absolute()) if arguments.endpoints else "",
        lookup_port=port,
    )


def choose_address(given: str | None) -> str:
    """Return the address of Ray's head, "" for the cluster of this machine."""
    address = given or os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address} is Ray's client protocol: run the command on a host of the cluster, with "
            "--address HOST:PORT of its head"
        )
    return "" if address in ("auto", "local") else address
