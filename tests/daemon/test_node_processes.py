"""The processes of a daemon: their placement, what they say of each other, and equal bytes.

Two node processes run on a simulated sysfs. Real NUMA nodes: make test-numa.
"""

import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from feeder.cli.main import run
from feeder.dataset.opened import Dataset
from feeder.errors import DisagreementError
from feeder.jpeg.libraries import library_versions
from feeder.sample.self_test import compute_self_test
from feeder.wire.agreement import Producer, find_disagreement
from feeder.wire.messages import Welcome
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    customised,
    node_processes,
    serve,
    small_recipe,
)
from tests.support.machine_tree import node, write_tree
from tests.support.sources import call_feeder

CPUS = sorted(os.sched_getaffinity(0))
ABSENT = 900


def greet(endpoint: str) -> Welcome:
    with RawClient(endpoint) as client:
        answer = client.hello(small_recipe())
        client.bye()
    assert isinstance(answer, Welcome)
    return answer


DIES_AT_FIRST = """
import os, sys
if "feeder.node" in sys.orig_argv:
    try:
        os.close(os.open(os.environ["FIRST_NODE"], os.O_CREAT | os.O_EXCL))
        os._exit(3)
    except FileExistsError:
        pass
"""
"""A sitecustomize: the first node process to start ends before it is ready."""


def two_nodes(packed: Path, folder: Path, *binds: str) -> list[str]:
    """Return the options of a daemon with two node processes."""
    tree = node(0, str(CPUS[0]), 1 << 20) | node(ABSENT, str(CPUS[-1]), 1 << 20)
    machine = write_tree(folder / "machine", tree)
    options = ["--data", f"d={packed}", "--pin", f"{CPUS[0]},{CPUS[-1]}"]
    options += ["--topology-root", str(machine)]
    return options + [option for bind in binds for option in ("--bind", bind)]


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_both_node_processes_and_a_successor_list_all_endpoints(
    packed: Path, tmp_path: Path
) -> None:
    options = two_nodes(packed, tmp_path, "tcp://127.0.0.1:0", f"ipc://{tmp_path}/n")
    with Daemon(*options) as daemon:
        one, one_ipc, other, other_ipc = daemon.endpoints
        assert len({one, other, "tcp://127.0.0.1:0"}) == 3
        assert (one_ipc, other_ipc) == (f"ipc://{tmp_path}/n", f"ipc://{tmp_path}/n.1")
        before = [greet(endpoint) for endpoint in daemon.endpoints]
        assert [welcome.number for welcome in before] == [0, 0, 1, 1]
        assert {welcome.siblings for welcome in before} == {((one, one_ipc), (other, other_ipc))}
        host = os.uname().nodename
        assert [welcome.node for welcome in before] == [
            *[f"{host}/0 {one}"] * 2,
            *[f"{host}/1 {other}"] * 2,
        ]
        assert {welcome.self_test for welcome in before} == {compute_self_test()}
        incarnations = [welcome.incarnation for welcome in before]
        assert incarnations[0] == incarnations[1] != incarnations[2] == incarnations[3]

        node_processes(psutil.Process(daemon.process.pid))[1].kill()
        daemon.wait_line("node process 1 serves again")
        for was, is_now in zip(before[1:3], map(greet, daemon.endpoints[1:3]), strict=True):
            assert is_now.siblings == was.siblings
            assert (is_now.node, is_now.number) == (was.node, was.number)
            assert (is_now.incarnation == was.incarnation) == (was.number == 0)
        daemon.family()


def test_a_named_feeder_has_the_same_name_at_another_address(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        serve(packed, "--name", "pod-1", workers=1) as one,
        serve(packed, "--name", "pod-1", workers=1, bind=f"ipc://{tmp_path}/n") as other,
    ):
        welcomes = [greet(daemon.endpoints[0]) for daemon in (one, other)]
        assert [welcome.node for welcome in welcomes] == ["pod-1/0"] * 2
        assert welcomes[0].incarnation != welcomes[1].incarnation
        assert run(["status", one.endpoints[0], other.endpoints[0]]) == 0
    assert "2 feeders are named pod-1: " in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_no_client_is_welcomed_before_all_node_processes_are_ready(
    packed: Path, tmp_path: Path
) -> None:
    environ = customised(tmp_path, DIES_AT_FIRST) | {"FIRST_NODE": str(tmp_path / "first")}
    one, other = f"ipc://{tmp_path}/n", f"ipc://{tmp_path}/n.1"
    options = two_nodes(packed, tmp_path, one, "tcp://127.0.0.1:0")
    with Daemon(*options, environ=environ, is_ready=False) as daemon:
        for endpoint in (one, other):
            siblings = greet(endpoint).siblings
            assert [bound[0] for bound in siblings] == [one, other]
            ports = {bound[1].rpartition(":")[2] for bound in siblings}
            assert len(ports - {"0"}) == 2, "as bound, also by the last one to start"
        daemon.wait_line("ended with status 3: restarted")
        daemon.family()


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_a_refused_memory_policy_is_a_warning_and_both_nodes_serve_the_same_bytes(
    packed: Path, tmp_path: Path
) -> None:
    """The second node's memory does not exist: its policy is refused, as in some containers."""
    socket = f"ipc://{tmp_path}/socket"
    with Daemon(*two_nodes(packed, tmp_path, socket)) as daemon:
        nodes = node_processes(psutil.Process(daemon.process.pid))
        for node_process, cpu in zip(nodes, CPUS, strict=False):
            (worker,) = node_process.children()
            assert node_process.cpu_affinity() == worker.cpu_affinity() == [cpu]
        batches = []
        for endpoint in (socket, f"{socket}.1"):
            with RawClient(endpoint) as client:
                client.hello(small_recipe())
                client.want((2, 0))
                batches.append(client.take((2, 0)))
        one, other = batches
        assert one.pixels.tobytes() == other.pixels.tobytes()
        assert one.sample_ids.tolist() == other.sample_ids.tolist()
        daemon.wait_line(f"warning: memory of node {ABSENT} is not bound to node {ABSENT}")
        assert daemon.stop()[0] == 0
    assert len(nodes) == 2


# --- equal bytes ------------------------------------------------------------------------------

ALTERED_AFTER_THE_FIRST = """
import os, sys
if "feeder.worker" in sys.orig_argv:
    try:
        os.close(os.open(os.environ["FIRST_WORKER"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        from feeder.jpeg import _native

        def altered(*arguments, resize=_native.resize_pack):
            resize(*arguments)
            arguments[9].reshape(-1).view("u1")[0] ^= 1

        _native.resize_pack = altered
"""
"""A sitecustomize: all workers but the first one get a library that is off by one."""


def test_a_disagreement_names_both_and_the_libraries_that_differ() -> None:
    one = Producer("gpu1", "a" * 32, {"numpy": "2.3", "pillow": "11.2", "old": "1"})
    other = Producer("gpu2", "b" * 32, {"numpy": "2.4", "pillow": "11.2"})
    assert find_disagreement(one, other) == (
        "gpu1 and gpu2 would make different batches of the same dataset: "
        f"self-test {'a' * 32} with numpy 2.3, old 1, "
        f"self-test {'b' * 32} with numpy 2.4, old missing"
    )


def altered(packed: Path, folder: Path, *options: str, **settings: Any) -> Daemon:
    """Start a daemon whose workers, except the first, make different bytes."""
    environ = customised(folder, ALTERED_AFTER_THE_FIRST)
    environ["FIRST_WORKER"] = str(folder / "first")
    return serve(packed, *options, environ=environ, **settings)


def check_refusal(daemon: Daemon, kind: str) -> None:
    """Check that the daemon ends with one line that names both."""
    line = daemon.wait_line("^feeder: error: ")
    assert re.search(rf"{kind} \d and {kind} \d would make different batches of the same", line)
    assert compute_self_test() in line
    assert "libraries of equal versions" in line
    assert daemon.process.wait(DEADLINE_S) == DisagreementError.exit_status


def test_workers_that_disagree_do_not_start(packed: Path, tmp_path: Path) -> None:
    with altered(packed, tmp_path, is_ready=False) as daemon:
        check_refusal(daemon, "worker")


def test_a_successor_that_makes_different_bytes_ends_the_daemon(
    packed: Path, tmp_path: Path
) -> None:
    with altered(packed, tmp_path, workers=1) as daemon:
        daemon.workers()[0].kill()
        check_refusal(daemon, "worker")


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_node_processes_that_disagree_do_not_start(packed: Path, tmp_path: Path) -> None:
    _, _, *options = two_nodes(packed, tmp_path)
    with altered(packed, tmp_path, *options, is_ready=False) as daemon:
        check_refusal(daemon, "node process")


def test_turbojpeg_serves_an_epoch_of_the_bytes_and_terms_of_our_own_decoder(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "feeder.toml"
    file.write_text('[serve]\ndecoder = "turbojpeg"')
    recipe = small_recipe(batch_size=10)
    with (
        serve(packed, "--config", file, workers=1) as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        welcome = client.hello(recipe, window=5)
        assert (welcome.self_test, welcome.libraries) == (compute_self_test(), library_versions())
        client.want(*((0, index) for index in range(5)))
        for index in range(5):  # compared with what our own decoder makes here
            check_batch(dataset, recipe, (0, index), client.take((0, index)))
        client.bye()
        assert "\nfeeder: decoder: turbojpeg\n" in daemon.ready
        lines = call_feeder("status", daemon.endpoint, "--counters").stdout.splitlines()
        assert ["decoder", "turbojpeg"] in [line.split(maxsplit=1) for line in lines]
