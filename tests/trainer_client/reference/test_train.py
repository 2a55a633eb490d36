"""The reference job: its arithmetic, and whole runs against a fake node."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import torch

from bench.daemon import free_port
from feeder.errors import ConfigError, PeerError, ResourceError
from feeder.wire.messages import Bye, Hello, Request, Welcome
from tests.support.daemon import Daemon, pack_small
from tests.support.fake_node import WAIT_S, FakeNode
from tests.support.key_pairs import KeyPair
from trainer_client import Batch, FeederLoader
from trainer_client.reference.job import choose_device
from trainer_client.reference.recipes.recipe import KEYS
from trainer_client.train import TrainingOptions, TrainingRecipe, main, train

torch.set_num_threads(1)  # more threads only slow down models this small
ROOT = Path(__file__).resolve().parents[3]
SAMPLES = 97


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake


def make_options(node: FakeNode, **changes: object) -> TrainingOptions:
    settings: dict[str, object] = {
        "endpoint": node.endpoint,
        "dataset": "train",
        "model": "small",
        "epochs": 2,
        "batch_size": 16,
        "image_size": 32,
        "warmup_epochs": 1.0,
        "timeout_s": 20.0,
        "device": "cpu",
    }
    settings |= changes
    keys = {name: settings.pop(name) for name in [*settings] if name in KEYS}
    return TrainingOptions(recipe=TrainingRecipe().changed(keys), **settings)


def command_line(node: FakeNode, *more: str) -> list[str]:
    return [
        *(node.endpoint, "--dataset", "train", "--model", "small", "--batch-size", "16"),
        *("--image-size", "32", "--epochs", "1", "--warmup-epochs", "0", "--device", "cpu"),
        *("--timeout-s", "20", *more),
    ]


def test_a_job_trains_evaluates_exactly_and_reports(node: FakeNode) -> None:
    lines: list[str] = []
    batches: list[tuple[int, int]] = []

    def remember(batch: Batch, loader: FeederLoader) -> None:
        assert loader.classes == node.classes
        assert batch.images.dtype == torch.float32
        batches.append((batch.epoch, batch.index))

    options = make_options(node, val_dataset="val")
    result = train(options, report=lines.append, on_batch=remember)
    assert batches == [(epoch, index) for epoch in range(2) for index in range(6)]
    assert len(result.losses) == 2 * (SAMPLES // 16)
    assert all(math.isfinite(loss) for loss in result.losses)
    assert [epoch.images for epoch in result.epochs] == [96, 96]
    assert [epoch.val_images for epoch in result.epochs] == [SAMPLES, SAMPLES]
    for epoch in result.epochs:
        assert 0 <= epoch.wait_share <= 1
        assert epoch.val_correct is not None
        assert 0 <= epoch.val_correct <= SAMPLES
        assert epoch.val_correct_top5 == SAMPLES, "there are only three classes"
    assert 0 < result.connect_s < 20
    assert result.loader is not None
    assert result.loader.first_batch_s is not None
    assert lines[0].startswith("small on cpu, 1 x 16 images a step, 6 steps an epoch, 97 images")
    assert lines[1].startswith("epoch 0: loss ")
    assert lines[1].endswith("% correct")
    assert lines[-1].startswith("finished after 2 epochs and ")
    assert node.problems == []


def test_the_same_seed_gives_the_same_losses(node: FakeNode) -> None:
    first = train(make_options(node), report=lambda line: None)
    second = train(make_options(node), report=lambda line: None)
    other = train(make_options(node, seed=1), report=lambda line: None)
    assert first.losses == pytest.approx(second.losses, rel=1e-3)
    assert first.losses != pytest.approx(other.losses, rel=1e-3)


def test_evaluation_does_not_disturb_the_training_order(node: FakeNode) -> None:
    train(make_options(node, val_dataset="val"), report=lambda line: None)
    requests = [message for message in node.received if isinstance(message, Request)]
    training = min(request.session for request in requests)
    wanted = [key for request in requests if request.session == training for key in request.want]
    assert wanted[:12] == [(epoch, index) for epoch in range(2) for index in range(6)]
    assert {epoch for epoch, _ in wanted[12:]} <= {2}, "only the next epoch is prefetched"


def test_an_unknown_model_is_refused() -> None:
    recipe = TrainingRecipe(model="vgg")
    options = TrainingOptions(endpoint="tcp://127.0.0.1:1", dataset="x", recipe=recipe)
    with pytest.raises(ConfigError, match=r"model must be one of .*resnet50.*, got 'vgg'"):
        train(options, report=lambda line: None)


def test_the_command_writes_its_result_as_json(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    assert main(command_line(node, "--val-dataset", "val", "--json", str(path))) == 0
    result = json.loads(path.read_text())
    assert result["options"]["batch_size"] == 16
    assert result["epochs"][0]["val_images"] == SAMPLES
    assert len(result["losses"]) == 6
    assert result["loader"]["images"] == 96
    assert "epoch 0: loss" in capsys.readouterr().out


def test_the_command_passes_on_fields_of_the_recipe(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = ["auto_augment=trivial-augment-wide", "erasing_probability=0.1"]
    more = [f"--data-recipe={text}" for text in fields]
    more += ["--val-dataset", "val", "--val-data-recipe", "interpolation=bicubic"]
    assert main(command_line(node, *more)) == 0
    recipes = [message.recipe for message in node.received if isinstance(message, Hello)]
    assert [recipe.split for recipe in recipes] == ["train", "val"]
    assert recipes[0].auto_augment == "trivial-augment-wide"
    assert recipes[0].erasing_probability == 0.1
    assert (recipes[1].interpolation, recipes[1].auto_augment) == ("bicubic", "none")
    capsys.readouterr()
    assert main(command_line(node, "--data-recipe", "hue=7")) == ConfigError.exit_status
    assert "hue must be a number 0 .. 0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lr -1", "lr must be a finite number, 0 or more, got -1"),
        ("--lr nan", "lr must be a finite number, 0 or more, got nan"),
        ("--momentum -0.5", "momentum must be a finite number, 0 or more, got -0.5"),
        ("--weight-decay inf", "weight_decay must be a finite number, 0 or more, got inf"),
        ("--warmup-epochs -5", "warmup_epochs must be a finite number, 0 or more, got -5"),
        ("--epochs -1", "epochs must be a whole number, 0 or more, got -1"),
        ("--label-smoothing 2", "label_smoothing must be a finite number, 0 .. 1, got 2"),
        ("--device gpu", "device 'gpu' cannot be used here ("),
        ("--device cuda:99", "device 'cuda:99' cannot be used here ("),
    ],
)
def test_an_invalid_option_is_refused_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tcp://127.0.0.1:9", "--dataset", "x", "--device", "cpu"]
    arguments += ["--timeout-s", "0.3", *options.split()]
    assert main(arguments) == ConfigError.exit_status
    error = capsys.readouterr().err
    assert error.startswith(f"train: error: {message}")
    assert error.count("\n") == 1


def test_cuda_is_the_device_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.empty", lambda *size, device: None)  # any device works
    assert choose_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda") == torch.device("cuda", 3)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_result_that_cannot_be_written_is_one_line(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "result.json"
    assert main(command_line(node, "--json", str(path))) == ResourceError.exit_status
    error = capsys.readouterr().err
    assert error.startswith(f"train: error: cannot write the result to {path} (No such file")
    assert error.count("\n") == 1


def test_the_command_trains_from_a_feeder_with_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, client = (KeyPair.make(tmp_path, name) for name in ("server", "client"))
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "client.pub").write_text(client.public.read_text())
    with Daemon(
        *("--data", f"d={pack_small(tmp_path)}", "--workers", "1", "--bind", "tcp://127.0.0.1:0"),
        *("--secret-key", server.secret, "--client-keys", allowed),
    ) as daemon:
        arguments = [daemon.endpoints[0], "--dataset", "d", "--model", "small", "--device", "cpu"]
        arguments += ["--epochs", "1", "--batch-size", "4", "--image-size", "32"]
        assert main(arguments) == PeerError.exit_status
        assert "give server_key and client_key" in capsys.readouterr().err
        keys = ["--server-key", str(server.public), "--client-key", str(client.secret)]
        assert main([*arguments, *keys]) == 0
    assert "epoch 0: loss" in capsys.readouterr().out


def test_an_absent_daemon_is_one_line_and_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tcp://127.0.0.1:9", "--dataset", "x", "--timeout-s", "0.3", "--device", "cpu"]
    assert main(arguments) == PeerError.exit_status
    error = capsys.readouterr().err
    assert error.startswith("train: error: no welcome from tcp://127.0.0.1:9 within 0.3 s")
    assert error.count("\n") == 1


@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"])
def test_one_of_several_processes_that_cannot_find_the_others_is_an_error(
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
) -> None:
    monkeypatch.setenv(variable, "4")
    assert main(command_line(node)) == ConfigError.exit_status
    error = capsys.readouterr().err
    assert f"has started 4 processes ({variable}=4)" in error
    assert error.endswith(
        "start the job with torchrun, which says, or unset the variable for a single process\n"
    )
    assert node.received == []


def test_a_validation_set_with_other_classes_is_refused(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    welcome = node.welcome

    def welcome_with_other_classes(number: int) -> Welcome:
        made = welcome(number)
        classes = ("cat", "emu", "dog") if made.dataset == "val" else made.classes
        return msgspec.structs.replace(made, classes=classes)

    monkeypatch.setattr(node, "welcome", welcome_with_other_classes)
    assert main(command_line(node, "--val-dataset", "val")) == ConfigError.exit_status
    error = capsys.readouterr().err
    assert "class 1, the first that differs, is 'emu' here and 'dog' there" in error
    assert error.count("\n") == 1


def test_ranks_without_torchrun_find_each_other_by_the_environment(node: FakeNode) -> None:
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = ["-m", "trainer_client.train", *command_line(node)]
    with (
        run_job(*command, environment={**here, "RANK": "1"}) as second,
        run_job(*command, environment={**here, "RANK": "0"}) as first,
    ):
        try:
            output, error = first.communicate(timeout=150)
            second.communicate(timeout=150)
        finally:
            first.kill()
            second.kill()
    assert (first.returncode, second.returncode) == (0, 0), error
    assert "small on cpu, 2 x 16 images a step, 3 steps an epoch" in output


def test_a_rank_that_loses_another_one_ends_with_one_line(node: FakeNode) -> None:
    node.script = lambda key, messages: [] if key == (0, 4) else messages  # both ranks wait here
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = ["-m", "trainer_client.train", *command_line(node, "--timeout-s", "100")]
    with (
        run_job(*command, environment={**here, "RANK": "1"}) as second,
        run_job(*command, environment={**here, "RANK": "0"}) as first,
    ):
        try:
            node.wait_until(lambda: any_wanted(node, (0, 4)), "the job does not train")
            first.kill()
            error = second.communicate(timeout=150)[1]
        finally:
            first.kill()
            second.kill()
    assert second.returncode == PeerError.exit_status, error
    assert error.startswith("train: error: rank 1 has lost another rank, which has ended: see that")
    assert error.count("\n") == 1


def test_a_missing_batch_ends_the_job_with_its_name(node: FakeNode) -> None:
    node.script = lambda key, messages: [] if key[1] > 2 else messages
    with pytest.raises(PeerError, match="no batch 3 of epoch 0 from tcp://"):
        train(make_options(node, timeout_s=3.0), report=lambda line: None)


def run_job(*command: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_the_job_cleanly(node: FakeNode) -> None:
    node.script = lambda key, messages: [] if key[1] == 4 else messages
    with run_job("-m", "trainer_client.train", *command_line(node, "--timeout-s", "60")) as job:
        try:
            node.wait_until(lambda: any_wanted(node, (0, 4)), "the job does not train")
            job.send_signal(signal.SIGINT)
            _, error = job.communicate(timeout=WAIT_S)
        finally:
            job.kill()
    assert (job.returncode, error) == (130, "train: interrupted\n")
    node.wait_until(lambda: node.count(Bye), "no Bye")


def test_two_ranks_share_an_epoch_and_count_the_evaluation_once(
    node: FakeNode, tmp_path: Path
) -> None:
    with run_job(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "trainer_client.train"),
        *command_line(node, "--val-dataset", "val", "--json", str(tmp_path / "result.json")),
    ) as job:
        try:
            output, error = job.communicate(timeout=150)
        finally:
            job.kill()
    assert job.returncode == 0, error
    assert "small on cpu, 2 x 16 images a step, 3 steps an epoch" in output
    assert output.count("epoch 0: loss") == 1, "only rank 0 reports"
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["epochs"][0]["val_images"] == SAMPLES
    assert result["epochs"][0]["images"] == 96
    wanted = [key for m in node.received if isinstance(m, Request) for key in m.want if key[0] == 0]
    assert len([key for key in wanted if key[1] < 6]) == 6 + 6, "training and evaluation, once each"


def any_wanted(node: FakeNode, key: tuple[int, int]) -> bool:
    return any(isinstance(m, Request) and key in m.want for m in node.received)
