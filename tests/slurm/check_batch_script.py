"""docs/slurm/feeder.sbatch on a real Slurm with four nodes: `make test-slurm`."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench.daemon import free_port
from tests.slurm.cluster import JOB_DEADLINE_S, SCRIPT, Cluster, Job, missing_programs
from tests.support.daemon import Daemon, pack_small, wait_until
from tests.support.key_pairs import KeyPair
from tests.support.lent_client import expected
from tests.support.sources import REPOSITORY

BATCHES = 20
APART = ("--no-kill --nodes=2 --ntasks-per-node=1 : --no-kill --nodes=2",)
BESIDE = ("--nodes=2 --ntasks-per-node=1",)
TRAINER = (sys.executable, "-m", "tests.slurm.trainer", str(BATCHES))

pytestmark = pytest.mark.skipif(
    bool(missing_programs()),
    reason=f"no {', '.join(missing_programs())} here: `make test-slurm` installs Slurm",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("slurm"))


@pytest.fixture(scope="module")
def undisturbed(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The batches of a single feeder, more than any job takes."""
    bind = f"ipc://{tmp_path_factory.mktemp('single')}/s"
    with Daemon("--data", f"d={packed}", "--bind", bind, "--workers", "1") as daemon:
        return expected(daemon.endpoint, 60)


@pytest.fixture
def environ(packed: Path) -> dict[str, str]:
    return {
        "FEEDER_SERVE": f"--data d={packed} --workers 1 --chunk-images 4",
        "FEEDER_PORT": str(free_port()),
        "PATH": f"{Path(sys.executable).parent}:{Cluster.path}",
        "PYTHONPATH": str(REPOSITORY),
    }


def batches_of(job: Job) -> list[str]:
    words = (line.split(" ", 2) for line in job.output.splitlines() if line.startswith("batch "))
    return [digest for _, _, digest in words]


def feeders_of(job: Job) -> list[int]:
    lines = (line.split() for line in job.output.splitlines() if line.startswith("batch "))
    return [int(feeders) for _, feeders, *_ in lines]


def endpoints_of(job: Job) -> dict[str, str]:
    lines = (job.folder / "endpoints").read_text().splitlines()
    return dict(line.split() for line in lines)


def check_batches(job: Job, undisturbed: list[str]) -> None:
    """Two ranks took BATCHES each, every one once and with a single feeder's bytes."""
    taken = batches_of(job)
    assert len(taken) == len(set(taken)) == 2 * BATCHES, job.output
    assert set(taken) <= set(undisturbed), "other bytes than a single feeder's"


def await_middle(job: Job, ranks: int = 2) -> None:
    """Wait until each rank has printed half of its batches and waits for the gate."""
    half = ranks * (BATCHES // 2 + 1)
    wait_until(lambda: len(batches_of(job)) >= half, "half of the batches", JOB_DEADLINE_S)


@pytest.mark.parametrize(
    ("shape", "names"),
    [(APART, {"n3", "n4"}), (BESIDE, {"n1", "n2"})],
    ids=["on nodes of their own", "beside the trainers"],
)
def test_trainers_get_the_batches_of_a_single_feeder(
    shape: tuple[str, ...],
    names: set[str],
    cluster: Cluster,
    environ: Mapping[str, str],
    undisturbed: list[str],
    tmp_path: Path,
) -> None:
    job = cluster.submit(shape, TRAINER, environ, tmp_path)
    assert job.wait() == 0, job.output
    check_batches(job, undisturbed)
    port = environ["FEEDER_PORT"]
    assert endpoints_of(job) == {name: f"tcp://{cluster.address(name)}:{port}" for name in names}
    assert max(feeders_of(job)) == 2
    assert job.own_lines() == [], "nothing is wrong"
    assert job.folder.stat().st_mode & 0o777 == 0o700
    assert not (job.folder / "keys").exists(), "the keys of the job end with it"


def test_keys_that_are_given_are_used_and_stay(
    cluster: Cluster, environ: Mapping[str, str], undisturbed: list[str], tmp_path: Path
) -> None:
    keys = tmp_path / "given"
    keys.mkdir(0o700)
    for name in ("server", "trainer"):
        KeyPair.make(keys, name)
    job = cluster.submit(BESIDE, TRAINER, {**environ, "FEEDER_KEYS": str(keys)}, tmp_path)
    assert job.wait() == 0, job.output
    check_batches(job, undisturbed)
    assert not (job.folder / "keys").exists()
    assert len(list(keys.iterdir())) == 4


def test_the_exit_status_of_the_trainers_is_that_of_the_job(
    cluster: Cluster, environ: Mapping[str, str], tmp_path: Path
) -> None:
    job = cluster.submit(BESIDE, ("sh", "-c", "exit 7"), environ, tmp_path)
    assert job.wait() == 7, job.output


def test_a_cancelled_job_leaves_no_process(
    cluster: Cluster, environ: Mapping[str, str], tmp_path: Path
) -> None:
    command = (*TRAINER, str(tmp_path / "gate"))
    job = cluster.submit(APART, command, environ, tmp_path)
    await_middle(job)
    assert len(job.processes("serve", "--bind")) == 2
    cluster.run("scancel", job.number)
    job.wait()
    assert job.state()[0] == "CANCELLED"


def test_a_node_that_fails_stops_no_job(
    environ: Mapping[str, str], undisturbed: list[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with Cluster() as cluster:  # its own, as it has a node less then
        job = cluster.submit(APART, (*TRAINER, str(gate)), environ, tmp_path)
        await_middle(job)
        cluster.kill_node("n3")
        wait_until(lambda: job.nodes() == {"n1", "n2", "n4"}, "n3 is lost", JOB_DEADLINE_S)
        gate.touch()
        assert job.wait() == 0, job.output
    check_batches(job, undisturbed)


def test_a_feeder_that_dies_is_reported_and_the_job_goes_on(
    cluster: Cluster, environ: Mapping[str, str], undisturbed: list[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = cluster.submit(APART, (*TRAINER, str(gate)), environ, tmp_path)
    await_middle(job)
    victim = job.processes("serve", "--bind", "n3")
    assert len(victim) == 1
    victim[0].kill()
    wait_until(job.own_lines, "it is reported")
    gate.touch()
    assert job.wait() == 0, job.output
    check_batches(job, undisturbed)
    (line,) = job.own_lines()
    assert line.startswith("feeder: warning: the feeder on n3 has ended (status 137: feeder: ")


def test_a_job_whose_feeders_are_all_dead_ends(
    cluster: Cluster, environ: Mapping[str, str], tmp_path: Path
) -> None:
    job = cluster.submit(APART, (*TRAINER, str(tmp_path / "gate")), environ, tmp_path)
    await_middle(job)
    job.kill_feeders()
    assert job.wait() == 1
    assert job.own_lines()[-1] == f"feeder: error: all feeders have ended: see {job.folder}/*.log"


def test_a_feeder_that_cannot_start_ends_the_job_with_one_line(
    cluster: Cluster, environ: Mapping[str, str], tmp_path: Path
) -> None:
    with socket.socket() as holder:
        holder.bind((cluster.address("n3"), int(environ["FEEDER_PORT"])))
        holder.listen()
        job = cluster.submit(APART, TRAINER, environ, tmp_path)
        assert job.wait() == 4, job.output
    (line,) = job.output.splitlines()
    address = f"tcp://{cluster.address('n3')}:{environ['FEEDER_PORT']}"
    assert line.startswith("feeder: error: no feeder on n3: ")
    assert address in line


def test_a_dataset_that_is_missing_ends_the_job_with_one_line(
    cluster: Cluster, environ: Mapping[str, str], tmp_path: Path
) -> None:
    environ = {**environ, "FEEDER_SERVE": f"--data d={tmp_path}/missing"}
    job = cluster.submit(BESIDE, TRAINER, environ, tmp_path)
    assert job.wait() == 3, job.output
    (line,) = job.output.splitlines()
    assert line.startswith("feeder: error: no feeder on n")
    assert f"no dataset at {tmp_path}/missing" in line


@pytest.mark.parametrize(
    ("changes", "command", "start"),
    [
        ({"FEEDER_SERVE": ""}, TRAINER, "nothing to serve: export FEEDER_SERVE="),
        ({"PATH": "/usr/bin:/bin"}, TRAINER, "there is no command feeder on n1: activate"),
        ({}, (), "no command for the trainers: sbatch"),
        ({"FEEDER_READY_S": "0"}, TRAINER, "of 2 feeders "),
    ],
    ids=["nothing to serve", "not installed", "no command", "not ready in time"],
)
def test_a_wrong_setting_ends_the_job_with_one_line(
    changes: Mapping[str, str],
    command: tuple[str, ...],
    start: str,
    cluster: Cluster,
    environ: Mapping[str, str],
    tmp_path: Path,
) -> None:
    job = cluster.submit(BESIDE, command, {**environ, **changes}, tmp_path)
    assert job.wait() in (1, 2, 4)
    assert [line for line in job.output.splitlines() if "feeder: error: " in line] == [
        job.own_lines()[0]
    ]
    assert job.own_lines()[0].startswith(f"feeder: error: {start}")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="`make test-slurm` installs shellcheck")
def test_shellcheck_finds_nothing_in_the_script() -> None:
    done = subprocess.run(
        ["shellcheck", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
