"""The manifests of docs/kubernetes: valid for the API, consistent, and what the daemon does.

There is no cluster: the DaemonSet's own arguments start a daemon on this machine, and its own
probes ask that daemon.
"""

import contextlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bench.daemon import free_port
from feeder.client.stats import request_counters
from feeder.daemon.config import ServeConfig
from feeder.errors import ConfigError
from feeder.security.keys import ClientKeys, read_client_keys, read_public_keys, read_secret_key
from tests.support.daemon import DEADLINE_S, Daemon
from tests.support.key_pairs import KeyPair
from tests.support.sources import REPOSITORY, error_line, run_feeder

FOLDER = REPOSITORY / "docs/kubernetes"
VERSIONS = ("1.29", "1.37")
"""Of Kubernetes: an old one, and the newest that the package has."""

Manifest = dict[str, Any]


def manifests() -> dict[str, Manifest]:
    return {
        f"{path.stem} {found['kind']} {found['metadata']['name']}": found
        for path in sorted(FOLDER.glob("*.yaml"))
        for found in yaml.safe_load_all(path.read_text("utf-8"))
    }


ALL = manifests()
DAEMONS = ALL["feeder DaemonSet feeder"]
SERVICE = ALL["feeder Service feeder"]
JOB = ALL["trainer Job train"]
POD = DAEMONS["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ALL)
def test_a_manifest_is_valid_for_the_api(name: str, version: str) -> None:
    assert kubernetes_validate.validate(ALL[name], version, strict=True) == version


def test_the_service_finds_the_pods_and_its_name_is_the_clients() -> None:
    labels = DAEMONS["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["clusterIP"] == "None", "headless: a record for each pod"
    assert SERVICE["spec"]["selector"].items() <= labels.items()
    assert DAEMONS["spec"]["selector"]["matchLabels"].items() <= labels.items()
    name, namespace = (SERVICE["metadata"][key] for key in ("name", "namespace"))
    port = SERVICE["spec"]["ports"][0]["port"]
    (environ,) = (each["env"] for each in JOB["spec"]["template"]["spec"]["containers"])
    (endpoints,) = (each["value"] for each in environ if each["name"] == "FEEDER_ENDPOINTS")
    assert endpoints == f"dns://{name}.{namespace}.svc:{port}"
    assert f"--bind=tcp://*:{port}" in CONTAINER["args"]
    assert POD["terminationGracePeriodSeconds"] >= 2 * (ServeConfig().drain_s + 1)
    assert {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}["feeder"] == port


@pytest.mark.parametrize("pod", [POD, JOB["spec"]["template"]["spec"]], ids=["feeder", "trainer"])
def test_a_pod_mounts_the_secret_with_the_files_that_it_names(pod: Manifest) -> None:
    container = pod["containers"][0]
    words = container.get("args", []) + [str(each.get("value")) for each in container["env"]]
    used = {match[1] for word in words if (match := re.search(r"/run/secrets/feeder/(\S+)", word))}
    (volume,) = (each for each in pod["volumes"] if each["name"] == "keys")
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "keys")
    assert (mount["mountPath"], mount["readOnly"]) == ("/run/secrets/feeder", True)
    secret = ALL[f"secret Secret {volume['secret']['secretName']}"]
    assert used == set(secret["stringData"])
    assert volume["secret"]["defaultMode"] == 0o440, "what a daemon accepts of root's files"
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_keys_of_the_example_are_refused(packed: Path, tmp_path: Path) -> None:
    """Otherwise a feeder could serve with keys that are public."""
    for name, text in ALL["secret Secret feeder-keys"]["stringData"].items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    keys = ("--secret-key", tmp_path / "server", "--client-keys", tmp_path / "clients.pub")
    done = run_feeder("serve", "--data", f"d={packed}", "--bind", "tcp://*:0", *keys)
    assert done.returncode == ConfigError.exit_status
    assert f"{tmp_path}/clients.pub:1 is neither" in error_line(done)
    for name, text in ALL["secret Secret feeder-trainer-keys"]["stringData"].items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"server\.pub:1 is neither"):
        read_public_keys(tmp_path / "server.pub")
    with pytest.raises(ConfigError, match="trainer:1 is neither"):
        read_secret_key(tmp_path / "trainer")


class Pod:
    """A daemon with the arguments of the DaemonSet's container, its mounts replaced by folders."""

    def __init__(self, folder: Path, packed: Path) -> None:
        server, trainer = (KeyPair.make(folder, name) for name in ("server", "trainer"))
        trainer.public.rename(folder / "clients.pub")
        self.token = "a-token-of-this-test"
        (folder / "metrics-token").touch(0o600)
        (folder / "metrics-token").write_text(self.token)
        self.keys: ClientKeys | None = read_client_keys(server.public, trainer.secret)
        self.port, self.metrics_port = free_port(), free_port()
        changes = {
            "$(NODE_NAME)": "node-7",
            "/run/secrets/feeder": str(folder),
            "/data/imagenet": str(packed),
            "tcp://*:5555": f"tcp://127.0.0.1:{self.port}",
            "*:9464": f"127.0.0.1:{self.metrics_port}",
        }
        program, *arguments = CONTAINER["args"]
        assert program == "serve"
        for before, after in changes.items():
            assert any(before in argument for argument in arguments), f"no {before}"
            arguments = [argument.replace(before, after) for argument in arguments]
        arguments = [word for each in arguments for word in each.split("=", 1)]
        self.daemon = Daemon(*arguments, "--workers", "1")

    def probe(self, kind: str) -> int:
        get = CONTAINER[kind]["httpGet"]
        assert get["port"] == "metrics"
        return self.get(get["path"])

    def get(self, path: str, **headers: str) -> int:
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                return error.code


@pytest.fixture(scope="module")
def pod(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    pod = Pod(tmp_path_factory.mktemp("pod"), packed)
    with pod.daemon:
        yield pod


def test_the_daemon_starts_with_the_arguments_and_serves_under_the_nodes_name(pod: Pod) -> None:
    endpoint = f"tcp://127.0.0.1:{pod.port}"
    counters = request_counters(endpoint, DEADLINE_S, pod.keys)
    assert counters["workers"] == 1
    shown = run_feeder("serve", *("--name", "node-7", "--show"))
    assert 'name = "node-7"' in shown.stdout


@pytest.mark.parametrize("kind", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_needs_no_token(pod: Pod, kind: str) -> None:
    assert pod.probe(kind) == 200


def test_the_metrics_need_the_token_of_the_secret(pod: Pod) -> None:
    assert pod.get("/metrics") == 401
    assert pod.get("/metrics", Authorization=f"Bearer {pod.token}") == 200
