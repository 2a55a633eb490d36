"""Starts a Ray cluster of this machine alone, for ``feeder cluster up --local``."""

import json
import subprocess
import sys
from typing import Final

from feeder.cluster.ray_settings import ENVIRONMENT, RESOURCE, explain_missing
from feeder.errors import ConfigError, PeerError
from feeder.process.child import child_environment

_ADDRESS: Final = "127.0.0.2"
"""Of loopback: whoever reaches Ray's ports may run code. Ray replaces 127.0.0.1 by the machine's
address in its network."""

_PORT: Final = 6379  # Ray's default


def start_local(address: str, timeout_s: float) -> list[str]:
    """Start a head with the resource; return what to print. FeederError."""
    if address:
        raise ConfigError(f"--local starts a cluster here, and {address} names one: leave one out")
    command = [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head"),
        *(f"--node-ip-address={_ADDRESS}", f"--port={_PORT}", "--include-dashboard=false"),
        *("--disable-usage-stats", f"--resources={json.dumps({RESOURCE: 1})}"),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
            env=child_environment(ENVIRONMENT),
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"`ray start --head` did not end within {timeout_s:g} s") from None
    output = done.stdout.decode("utf-8", "replace")
    if "No module named ray" in output:
        raise explain_missing()
    if done.returncode:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        raise PeerError(f"`ray start --head` failed: {lines[-1] if lines else 'no output'}")
    return [
        f"Ray was started at {_ADDRESS}:{_PORT}, for this machine only, with",
        *(f"  {name}={value}" for name, value in ENVIRONMENT.items()),
    ]
