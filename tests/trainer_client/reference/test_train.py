"""The reference job's command and single runs against a fake node: data, reports, errors."""

import contextlib
import io
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from feeder.errors import ConfigError, PeerError, ResourceError
from feeder.installation import install_command
from feeder.wire.messages import Bye, Hello, Request
from tests.support.daemon import Daemon, pack_small, wait_until
from tests.support.fake_node import WAIT_S, FakeNode
from tests.support.key_pairs import KeyPair
from tests.trainer_client.reference.jobs import (
    SAMPLES,
    command_line,
    is_wanted,
    run,
    start,
)
from trainer_client import Batch, FeederLoader
from trainer_client.reference import own_feeder
from trainer_client.train import main


def test_a_job_trains_evaluates_exactly_and_reports(node: FakeNode) -> None:
    lines: list[str] = []
    batches: list[tuple[int, int]] = []

    def remember(batch: Batch, loader: FeederLoader) -> None:
        assert loader.classes == node.classes
        assert batch.images.dtype == torch.float32
        batches.append((batch.epoch, batch.index))

    result = run(node, lines, remember, val_dataset="val")
    assert batches == [(epoch, index) for epoch in range(2) for index in range(6)]
    assert sum(map(math.isfinite, result.losses)) == 2 * (SAMPLES // 16)
    for epoch in result.epochs:
        assert (epoch.images, epoch.val_images) == (96, SAMPLES)
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
    # Evaluations do not disturb the order of the training; only the next epoch is prefetched.
    requests = [message for message in node.received if isinstance(message, Request)]
    training = min(request.session for request in requests)
    wanted = [key for request in requests if request.session == training for key in request.want]
    assert wanted[:12] == batches
    assert {epoch for epoch, _ in wanted[12:]} <= {2}


def test_images_grow_by_epoch_and_a_resumed_job_goes_on_in_its_size(
    node: FakeNode, tmp_path: Path
) -> None:
    sizes = {"image_size": {"0": 32, "1": 40, "2": 48}, "val_image_size": 56, "epochs": 4}
    sizes |= {"schedule": "steps", "step_every_epochs": 100.0}  # the same whatever the epochs
    seen: list[tuple[int, int]] = []

    def remember(batch: Batch, _: FeederLoader) -> None:
        seen.append((batch.epoch, batch.images.shape[-1]))

    whole = run(node, None, remember, val_dataset="val", **sizes)
    assert seen == [(epoch, side) for epoch, side in enumerate((32, 40, 48, 48)) for _ in range(6)]
    recipes = {
        message.recipe.split: message.recipe
        for message in node.received
        if isinstance(message, Hello)
    }
    assert recipes["val"].image_size == 56
    checkpoint = tmp_path / "job.pt"
    run(node, checkpoint=checkpoint, val_dataset="val", **{**sizes, "epochs": 2})
    again = run(node, checkpoint=checkpoint, resume=checkpoint, val_dataset="val", **sizes)
    assert again.losses == whole.losses[12:]
    smaller = {**sizes, "image_size": {"0": 32, "1": 36}}
    with pytest.raises(ConfigError, match=r'pass --image-size .*"0" = 32, "1" = 40, "2" = 48'):
        run(node, resume=checkpoint, val_dataset="val", **smaller)


def test_the_command_passes_on_fields_of_the_recipe_and_writes_json(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    fields = ["auto_augment=trivial-augment-wide", "erasing_probability=0.1"]
    more = [f"--data-recipe={text}" for text in fields]
    more += ["--val-dataset", "val", "--val-data-recipe", "interpolation=bicubic"]
    assert main(command_line(node, *more, "--json", str(path))) == 0
    recipes = [message.recipe for message in node.received if isinstance(message, Hello)]
    assert [recipe.split for recipe in recipes] == ["train", "val"]
    assert recipes[0].auto_augment == "trivial-augment-wide"
    assert recipes[0].erasing_probability == 0.1
    assert (recipes[1].interpolation, recipes[1].auto_augment) == ("bicubic", "none")
    result = json.loads(path.read_text())
    assert result["options"]["batch_size"] == 16
    assert result["epochs"][0]["val_images"] == SAMPLES
    assert len(result["losses"]) == 6
    assert result["loader"]["images"] == 96
    assert "epoch 0: loss" in capsys.readouterr().out
    nowhere = tmp_path / "nowhere" / "result.json"
    arguments = command_line(node, "--epochs", "0", "--json", str(nowhere))
    assert main(arguments) == ResourceError.exit_status
    error = capsys.readouterr().err
    assert error.startswith(f"train: error: cannot write the result to {nowhere} (No such file")
    assert error.count("\n") == 1


FEEDER = "tcp://127.0.0.1:9 --dataset x --device cpu --timeout-s 0.3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"{FEEDER} --lr -1", "lr must be a finite number, 0 or more, got -1"),
        (f"{FEEDER} --data-recipe hue=7", "recipe: hue must be a number 0 .. 0.5"),
        (f"{FEEDER} --model vgg", "model must be one of resnet18, resnet34, "),
        (f"{FEEDER} --device cuda:99", "device 'cuda:99' cannot be used here ("),
        ("--wieght-decay 1", "there is no option --wieght-decay; nearest is --weight-decay"),
        ("tcp://127.0.0.1:1 again", "'again' is one argument too many (--help lists the options)"),
        (FEEDER, "no welcome from tcp://127.0.0.1:9 within 0.3 s"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = (PeerError if "welcome" in message else ConfigError).exit_status
    assert main(arguments.split()) == status
    error = capsys.readouterr().err
    assert error.startswith(f"train: error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endpoint": None}, "there is no endpoint: pass one"),
        ({"resume": "auto"}, "--resume needs --checkpoint FILE or --output DIR"),
        ({"target_accuracy": 0.7}, "target accuracy 0.7 needs a validation set: pass --val-data"),
        ({"resume": "nowhere.pt"}, "there is no checkpoint nowhere.pt: name a file, or pass --re"),
        ({"batch_norm_ranks": 3}, "batch_norm_ranks 3 does not divide the 1 rank"),
        ({"global_batch": 1024, "batch_size": 0}, "fewer than a step of 1,024|fewer than the"),
        ({"group_width": 16}, "group_width is an option of the EfficientNets"),
        ({"endpoint": None, "recipe_name": "smoke"}, "--recipe smoke needs --output DIR"),
        ({"batch_size": 1, "image_size": 8}, "batch norm needs more than one value of a channel"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    node: FakeNode, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        run(node, **changes)
    assert "\n" not in str(caught.value)


def test_show_prints_the_recipe_in_effect_and_needs_no_endpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--recipe", "imagenet-90", "--weight-decay", "1e-4", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "(command line)\nweight_decay = 0.0001" in shown
    assert "(imagenet-90)\nglobal_batch = 1024" in shown


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


def test_one_of_several_processes_that_cannot_find_the_others_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert main(FEEDER.split()) == ConfigError.exit_status
    error = capsys.readouterr().err
    assert "has started 4 processes (SLURM_NTASKS=4)" in error
    assert error.count("\n") == 1
    assert "start the job with torchrun, which sets the rank, or unset the variable" in error


def test_ctrl_c_ends_the_job_cleanly(node: FakeNode) -> None:
    node.script = lambda key, messages: [] if key[1] == 4 else messages
    with start("-m", "trainer_client.train", *command_line(node, "--timeout-s", "60")) as job:
        try:
            node.wait_until(lambda: is_wanted(node, (0, 4)), "the job does not train")
            job.send_signal(signal.SIGINT)
            _, error = job.communicate(timeout=WAIT_S)
        finally:
            job.kill()
    assert (job.returncode, error) == (130, "train: interrupted\n")
    node.wait_until(lambda: node.count(Bye), "no Bye")


# --- The smoke recipe's own data and feeder: made once, ended with the job ------------------------

HOLD = """
import sys, time
from pathlib import Path
from trainer_client.reference import own_feeder
with own_feeder.own_feeder(Path(sys.argv[1]), lambda line: print(line, flush=True)) as endpoint:
    print(endpoint, flush=True)
    time.sleep(600)
"""


def processes_of(folder: Path) -> list[int]:
    """Return the processes that work on the data of a run, but for this one."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = process.info["cmdline"] or []
        if any(str(folder / "data") in each for each in line) and process.pid != os.getpid():
            found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with few images."""
    path = tmp_path_factory.mktemp("smoke")
    arguments = ["--recipe", "smoke", "--output", str(path), "--device", "cpu", "--epochs", "1"]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(own_feeder, "IMAGES", {"train": 64, "val": 10})
        assert main(arguments) == 0
    (path / "output").write_text(output.getvalue())
    return path


def test_a_smoke_run_needs_nothing_and_leaves_its_data_and_no_process(folder: Path) -> None:
    output = (folder / "output").read_text()
    assert "drawing 64 synthetic images\npacking them\n" in output
    assert "1 x 32 images a step, 2 steps an epoch, 64 images, 10 classes" in output
    assert "epoch 0: loss " in output
    assert sorted(each.name for each in (folder / "data").iterdir()) == ["train", "val"]
    assert processes_of(folder) == []


def test_data_is_used_again_and_not_even_sigkill_leaves_a_process(folder: Path) -> None:
    with start("-c", HOLD, folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a feeder of this job serves them\n", "nothing is drawn"
        assert process.stdout.readline().startswith("ipc://")
        assert processes_of(folder)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: processes_of(folder) == [], "its processes are gone")


def test_an_environment_of_a_client_alone_is_one_line_that_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("turbojpeg", "psutil"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["--recipe", "smoke", "--output", str(tmp_path), "--device", "cpu"]) == 4
    assert capsys.readouterr().err == (
        "train: error: the smoke recipe packs images and serves them, and the daemon's parts for "
        "that are not installed in this environment: PyTurboJPEG, psutil: "
        f"{install_command('daemon', 'client')}\n"
    )
    assert not (tmp_path / "data").exists()
