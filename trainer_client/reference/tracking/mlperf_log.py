"""``mllog.txt``: the run as MLPerf Training has it, by mlperf-logging.

The keys are those of the ResNet benchmark, which version 4.0 of the rules was the last to have; the
package's compliance checker reads them (``--ruleset 4.0.0``). It passes a log only if the recipe
has the values of the rules and the model reaches 75.9 %; for other recipes it lists what differs.
What we cannot know is logged as it is safest: status ``research``, and caches not cleared.

Epochs count from 1 here, as in MLPerf's own logs.

Invariant: however often a job is resumed, the log is that of one run. A resume removes the lines of
epochs that were not complete, and that the run had stopped; it logs no parameter again.
"""

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mlperf_logging.mllog import constants as keys
from mlperf_logging.mllog.mllog import MLLogger

from trainer_client.reference.results import EpochResult, Outcome, RunInfo
from trainer_client.reference.tracking.files import explain_errors, make_folder, replace_file
from trainer_client.reference.tracking.tracker import Tracker

TARGET: Final = 0.759  # of the benchmark, for recipes without a target of their own
_MARK: Final = ":::MLLOG "
_ROOT: Final = Path(__file__).parents[3]  # call sites are logged relative to it


class MlperfLog(Tracker):
    """Writes the log into ``folder``, the run's. MLPerf's initialisation begins when it is made."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "mllog.txt"
        self._init_ms = int(time.time() * 1000)
        self._log: Any = None
        self._handler: _LogFile | None = None
        self._target = TARGET
        self._is_in_epoch = False

    def begin(self, run: RunInfo) -> None:
        """Log the parameters and the start of the run; of a resumed one go on with its log."""
        make_folder(self._path.parent)
        kept = _read_complete(self._path, len(run.history)) if run.first_step else ""
        replace_file(self._path, kept.encode())
        with explain_errors(self._path):
            self._handler = _LogFile(self._path, encoding="utf-8")
        logger = logging.Logger("mllog", logging.INFO)  # of its own: no other handler gets lines
        logger.addHandler(self._handler)
        self._log = MLLogger(logger, root_dir=str(_ROOT))
        self._target = run.recipe.get("target_accuracy") or TARGET
        if kept:
            return
        self._log.start(keys.INIT_START, time_ms=self._init_ms)
        self._log.event(keys.CACHE_CLEAR, False)
        for key, value in _parameters(run).items():
            self._log.event(key, value)
        self._log.end(keys.INIT_STOP)
        self._log.start(keys.RUN_START)

    def begin_epoch(self, epoch: int) -> None:
        self._log.start(keys.EPOCH_START, metadata={keys.EPOCH_NUM: epoch + 1})
        self._is_in_epoch = True

    def begin_evaluation(self, epoch: int) -> None:
        self._end_steps(epoch)
        self._log.start(keys.EVAL_START, metadata={keys.EPOCH_NUM: epoch + 1})

    def end_epoch(self, result: EpochResult) -> None:
        """Log the accuracy, that of the weights without averaging."""
        self._end_steps(result.epoch)
        if result.top1 is not None:
            metadata = {keys.EPOCH_NUM: result.epoch + 1}
            self._log.event(keys.EVAL_ACCURACY, result.top1, metadata=metadata)
            self._log.end(keys.EVAL_STOP, metadata=metadata)

    def end(self, outcome: Outcome) -> None:
        """Log the end of the run: a success if it has reached the target."""
        is_reached = outcome.target_s is not None or (outcome.best_top1 or 0.0) >= self._target
        self._end_run(keys.SUCCESS if is_reached else keys.ABORTED)

    def close(self) -> None:
        self._end_run(keys.ABORTED)

    def _end_steps(self, epoch: int) -> None:
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._log.end(keys.EPOCH_STOP, metadata={keys.EPOCH_NUM: epoch + 1})

    def _end_run(self, status: str) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            with contextlib.closing(handler):
                self._log.end(keys.RUN_STOP, metadata={"status": status})


def _parameters(run: RunInfo) -> Mapping[str, object]:
    """Return the keys that stand before the run's start; of the optimiser, the benchmark's."""
    recipe = run.recipe
    accumulation = max(1, recipe.get("accumulation", 1))
    micro_batch = run.global_batch // (run.ranks * accumulation)
    warmup_epochs = recipe.get("warmup_epochs", 0.0)
    values: dict[str, object] = {
        keys.SUBMISSION_BENCHMARK: keys.RESNET,
        keys.SUBMISSION_DIVISION: keys.CLOSED,
        keys.SUBMISSION_ORG: "feeder",
        keys.SUBMISSION_PLATFORM: f"{run.ranks} x {run.device}",
        keys.SUBMISSION_STATUS: keys.RESEARCH,
        keys.SEED: run.seed,
        keys.GLOBAL_BATCH_SIZE: run.global_batch,
        keys.GRADIENT_ACCUMULATION_STEPS: accumulation,
        keys.TRAIN_SAMPLES: run.train_samples,
        **({} if run.val_samples is None else {keys.EVAL_SAMPLES: run.val_samples}),
        keys.OPT_NAME: run.optimiser,
        keys.MODEL_BN_SPAN: micro_batch * recipe.get("batch_norm_ranks", 1),
    }
    if run.optimiser not in (keys.SGD, keys.LARS):
        return values
    prefix = f"{run.optimiser}_"
    values[prefix + keys.OPT_BASE_LR] = recipe.get("lr")
    values[prefix + "opt_momentum"] = recipe.get("momentum")
    values[prefix + keys.OPT_WEIGHT_DECAY] = recipe.get("weight_decay")
    if recipe.get("schedule") == "polynomial":
        falling = run.steps_per_epoch * run.epochs - round(warmup_epochs * run.steps_per_epoch)
        values[prefix + keys.OPT_END_LR] = recipe.get("end_lr")
        values[prefix + "opt_learning_rate_decay_poly_power"] = recipe.get("schedule_power")
        values[prefix + keys.OPT_LR_DECAY_STEPS] = max(0, falling)
    if run.optimiser == keys.LARS:
        values[keys.LARS_EPSILON] = recipe.get("lars_epsilon")
        values[keys.LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS] = warmup_epochs
    else:
        values[keys.OPT_LR_WARMUP_EPOCHS] = warmup_epochs
    return values


def _read_complete(path: Path, epochs: int) -> str:
    """Return the log without its end and without epochs above ``epochs``; "" if it has none.

    Lines that are cut short are left out, too.
    """
    with explain_errors(path):
        lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    kept = ""
    for line in lines:
        try:
            entry = json.loads(line.removeprefix(_MARK))
            epoch = entry["metadata"].get(keys.EPOCH_NUM, 0)
            if entry["key"] != keys.RUN_STOP and epoch <= epochs:
                kept += f"{line}\n"
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return kept


class _LogFile(logging.FileHandler):
    """Raises ResourceError where logging would only print that a line could not be written."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        with explain_errors(Path(self.baseFilename)):
            raise
