"""Where the reference job reports to: TensorBoard, Weights & Biases, MLPerf's log.

Their own readers read back what a made-up run has written, also after it was stopped and resumed.
"""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.running import SCRIPTS, environment, run_python
from tests.support.sources import REPOSITORY

PYTHON = environment("train")
SCRIPT = SCRIPTS / "track_run.py"
EPOCH = 20  # steps
REACHED, MISSED = [0.5, 0.7, 0.7612], [0.5, 0.7, 0.7401]
LARS: dict[str, Any] = {  # the reference of MLPerf for a batch of 4,096
    "optimiser": "lars",
    "global_batch": 4096,
    "recipe": {
        "optimiser": "lars",
        "lr": 9.0,
        "end_lr": 0.0001,
        "schedule": "polynomial",
        "schedule_power": 2.0,
        "warmup_epochs": 1.0,
        "momentum": 0.9,
        "weight_decay": 0.0002,
        "lars_epsilon": 0.0,
        "lars_trust": 0.001,
        "batch_norm_ranks": 1,
        "accumulation": 4,
        "target_accuracy": 0.759,
    },
}
SGD: dict[str, Any] = {
    "optimiser": "sgd",
    "recipe": {
        **LARS["recipe"],
        "optimiser": "sgd",
        "lr": 0.4,
        "weight_decay": 0.0001,
        "target_accuracy": 0.0,
    },
}


def run(*command: object, environ: Mapping[str, str] | None = None) -> str:
    """Return what a command, which must succeed, writes to standard output."""
    done = run_python(PYTHON, *command, folder=REPOSITORY, environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def report(
    folder: Path,
    options: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    **plan: Any,
) -> str:
    """Report a run to the trackers of ``options``; ``plan`` has further fields of its Plan."""
    fields = {"folder": str(folder), "options": options, "accuracies": REACHED, **plan}
    return run(SCRIPT, "report", json.dumps(fields), environ=environ)


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    options = {"tensorboard": True}
    report(tmp_path, options, last_step=2 * EPOCH + 15, loss=1.5)
    report(tmp_path, options, first_step=2 * EPOCH, loss=2.5)
    curves = json.loads(run(SCRIPT, "events", tmp_path / "tensorboard"))
    steps = range(5, 3 * EPOCH + 1, 5)
    assert curves["train/loss"] == [[step, 1.5 if step <= 2 * EPOCH else 2.5] for step in steps]
    for name in ("train/lr", "train/images_per_s", "train/wait_share"):
        assert [step for step, _ in curves[name]] == [*steps]
    ends = [EPOCH, 2 * EPOCH, 3 * EPOCH]
    assert curves["val/top1"] == [
        [step, pytest.approx(value)] for step, value in zip(ends, REACHED, strict=True)
    ]
    assert [step for step, _ in curves["epoch/loss"]] == ends


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a proxy that serves nothing, and the requests that it got."""
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                request = connection.recv(1000)
                if request == b"end":
                    return
                requests.append(request)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        thread = threading.Thread(target=serve, name="proxy")
        thread.start()
        try:
            yield f"http://{address[0]}:{address[1]}", requests
        finally:
            with socket.create_connection(address) as end:
                end.sendall(b"end")
            thread.join()


def test_wandb_works_offline_and_continues_its_run(tmp_path: Path) -> None:
    options = {"wandb": "feeder-check"}
    with refusing_proxy() as (proxy, requests):
        environ = {
            **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), proxy),
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy),
            "WANDB_MODE": "offline",
            "HOME": str(tmp_path / "home"),
        }
        (tmp_path / "home").mkdir()
        folder = tmp_path / "run"
        report(folder, options, environ, last_step=EPOCH + 10, loss=1.5, recipe={"lr": 0.25})
        report(folder, options, environ, first_step=EPOCH, loss=2.5)
    assert requests == []
    stopped, resumed = json.loads(run(SCRIPT, "wandb", folder))
    assert stopped["id"] == resumed["id"]
    assert stopped["project"] == resumed["project"] == "feeder-check"
    assert stopped["config"]["lr"] == 0.25
    assert (stopped["exit_status"], resumed["exit_status"]) == (1, 0)
    first, *_ = stopped["values"]
    assert first == {
        "global_step": 5,
        "train/loss": 1.5,
        "train/lr": 0.1,
        "train/images_per_s": 1000.0,
        "train/wait_share": 0.02,
    }
    logged = [
        (values["global_step"], values["val/top1"])
        for values in resumed["values"]
        if "val/top1" in values
    ]
    assert logged == [(2 * EPOCH, REACHED[1]), (3 * EPOCH, REACHED[2])]
    assert not (REPOSITORY / "wandb").exists()


def check_compliance(folder: Path) -> tuple[bool, str]:
    """Return whether the checker of mlperf-logging passes a log, and what it reports."""
    command = ["-m", "mlperf_logging.compliance_checker", "--werror", "--usage", "training"]
    command += ["--ruleset", "4.0.0", "--log_output", "checker.log", "mllog.txt"]
    done = run_python(PYTHON, *command, folder=folder)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("plan", [LARS, SGD], ids=["lars", "sgd"])
def test_a_run_by_the_rules_complies_with_mlperf(tmp_path: Path, plan: dict[str, Any]) -> None:
    output = report(tmp_path, {"mllog": True}, **plan)
    assert ":::MLLOG" not in output
    passed, findings = check_compliance(tmp_path)
    assert passed, findings
    last = json.loads((tmp_path / "mllog.txt").read_text().splitlines()[-1].partition(" ")[2])
    assert (last["key"], last["metadata"]["status"]) == ("run_stop", "success")


def test_a_resumed_run_complies_as_one(tmp_path: Path) -> None:
    report(tmp_path, {"mllog": True}, **LARS, last_step=EPOCH + 10)
    report(tmp_path, {"mllog": True}, **LARS, first_step=EPOCH)
    passed, findings = check_compliance(tmp_path)
    assert passed, findings
    lines = (tmp_path / "mllog.txt").read_text().splitlines()
    entries = [json.loads(line.partition(" ")[2]) for line in lines]
    epochs = [each["metadata"].get("epoch_num", 0) for each in entries if "ep" in each["key"]]
    assert [epoch for epoch in epochs if epoch] == [1, 1, 2, 2, 3, 3]
    assert [each["time_ms"] for each in entries] == sorted(each["time_ms"] for each in entries)


def test_a_recipe_that_is_not_the_benchmarks_is_reported_by_key(tmp_path: Path) -> None:
    recipe = {**SGD["recipe"], "schedule": "cosine"}
    report(tmp_path, {"mllog": True}, recipe=recipe)
    passed, findings = check_compliance(tmp_path)
    assert not passed
    for key in ("sgd_opt_end_learning_rate", "sgd_opt_learning_rate_decay_poly_power"):
        assert f"'{key}'" in findings
