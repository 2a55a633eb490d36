"""One model in training: steps, schedule, evaluation with exact counts.

The training recipe is the usual one for ImageNet: SGD with momentum, a learning rate proportional
to the global batch with a linear warm-up and a cosine decay per step, label smoothing, no weight
decay on biases and norms, channels_last. On CUDA the forward pass runs in the loader's half
precision (float16 with a scaled loss), on a CPU in float32, which is the fastest there.

Losses stay on the device until an epoch ends or a line is due: reading one waits for the device.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import nn

from feeder.errors import ConfigError
from trainer_client._accuracy import Accuracy
from trainer_client._batch import Batch
from trainer_client._loader import FeederLoader
from trainer_client.reference.resnet import MODELS

BASE_BATCH: Final = 256  # global batch for a learning rate of 0.1 (Goyal et al. 2017)
LOG_EVERY_STEPS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What to train and how; the defaults are the usual ones for ResNet-50 on ImageNet."""

    endpoint: str
    dataset: str
    val_dataset: str | None = None
    model: str = "resnet50"
    epochs: int = 90
    batch_size: int = 256  # of each rank
    lr: float | None = None  # None: 0.1 for a global batch of 256, proportional to it
    momentum: float = 0.9
    weight_decay: float = 5e-5
    label_smoothing: float = 0.1
    warmup_epochs: float = 5.0
    image_size: int = 224
    seed: int = 0
    window: int = 4
    timeout_s: float = 60.0
    device: str | None = None
    server_key: str | None = None  # where the feeder has keys: its public key, a file or its text
    client_key: str | None = None  # and the file of this job's secret key
    recipe: dict[str, object] = field(default_factory=dict)  # further fields, for training
    val_recipe: dict[str, object] = field(default_factory=dict)  # and for evaluation
    checkpoint: str | None = None  # file
    checkpoint_steps: int = 1000  # between checkpoints, beside the one at each epoch's end
    resume: bool = False  # from the checkpoint, if it exists


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """One epoch as measured by this rank; images are those of all ranks.

    If the job was resumed or stopped in this epoch, only the steps of this process count.
    """

    epoch: int
    steps: int
    images: int
    seconds: float
    images_per_s: float
    wait_share: float  # share of the time spent waiting for the feeder
    loss: float  # mean over the epoch
    lr: float
    val_images: int | None = None
    val_correct: int | None = None
    val_correct_top5: int | None = None
    val_s: float | None = None

    def __str__(self) -> str:
        """Return the result as one line for the log."""
        line = (
            f"epoch {self.epoch}: loss {self.loss:.3f}, {self.images_per_s:,.0f} images/s, "
            f"waited for data {self.wait_share:.0%} of {self.seconds:.1f} s, lr {self.lr:.4f}"
        )
        if self.val_images and self.val_correct is not None:
            line += (
                f", {self.val_correct:,} of {self.val_images:,} correct "
                f"({self.val_correct / self.val_images:.1%})"
            )
        return line


class StepHook(Protocol):
    """Called before and after each step."""

    def begin(self) -> None:
        """Prepare, before the step's work."""
        ...

    def end(self, step: int) -> bool:
        """Return whether to leave the epoch after its ``step``."""
        ...


class Trainer:
    """The model, its optimiser and its schedule."""

    def __init__(
        self, options: TrainingOptions, loader: FeederLoader, device: torch.device
    ) -> None:
        torch.manual_seed(options.seed)
        self.options = options
        self.loader = loader
        self.device = device
        model: nn.Module = MODELS[options.model](len(loader.classes))
        model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        plain_model = model
        if loader.world_size > 1:
            ids = [device] if device.type == "cuda" else None
            model = nn.parallel.DistributedDataParallel(model, device_ids=ids)
        self.model = model
        self._plain_model = plain_model
        lr = options.lr
        if lr is None:
            lr = 0.1 * options.batch_size * loader.world_size / BASE_BATCH
        self.optimiser = torch.optim.SGD(
            _parameter_groups(model, options.weight_decay), lr=lr, momentum=options.momentum
        )
        steps = len(loader)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser,
            lambda step: lr_factor(step, options.warmup_epochs * steps, options.epochs * steps),
        )
        self.loss = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
        half = loader.dtype if device.type == "cuda" else torch.float32
        self.autocast = torch.autocast(device.type, dtype=half, enabled=half != torch.float32)
        self.scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that resumes the job: equal in all ranks, for any number of them."""
        return {
            "name": self.options.model,
            "model": self._plain_model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at ``state``; ConfigError when it is of another model or job."""
        try:
            if state["name"] != self.options.model:
                raise ConfigError(
                    f"the checkpoint is of model {state['name']!r}, this job trains "
                    f"{self.options.model!r}: pass --model {state['name']}"
                )
            self.loader.load_state_dict(state["loader"])
            self._check_optimiser(state["optimiser"])
            self._plain_model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.schedule.load_state_dict(state["schedule"])
            self.scaler.load_state_dict(state["scaler"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"the checkpoint does not fit this job: {reason}") from error

    def _check_optimiser(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError if loading ``state`` would silently override an option."""
        names = {"initial_lr": "lr", "momentum": "momentum", "weight_decay": "weight_decay"}
        for saved, here in zip(state["param_groups"], self.optimiser.param_groups, strict=True):
            for key, name in names.items():
                # isclose: the default lr is a product, rounded differently by number of ranks.
                if not math.isclose(saved[key], here[key]):
                    raise ConfigError(
                        f"the checkpoint is of {name} {saved[key]}, this job has {here[key]}: "
                        f"pass --{name.replace('_', '-')} {saved[key]}"
                    )

    def train_epoch(
        self,
        epoch: int,
        losses: list[float],
        report: Callable[[str], None],
        on_batch: Callable[[Batch[torch.Tensor]], None] | None,
        step_hook: StepHook | None = None,
    ) -> EpochResult:
        """Take the remaining steps of an epoch; append each step's loss to ``losses``.

        ``step_hook`` may end the epoch early.
        """
        self.model.train()
        self.loader.set_epoch(epoch)
        before = self.loader.statistics()
        start_s = time.monotonic()
        on_device: list[torch.Tensor] = []
        first_step = int(self.loader.state_dict()["step"])
        for step, batch in enumerate(self.loader, first_step):
            if step_hook is not None:
                step_hook.begin()
            if on_batch is not None:
                on_batch(batch)
            on_device.append(self._step(batch))
            if (step + 1) % LOG_EVERY_STEPS == 0:  # reading a loss waits for the device
                rate = len(on_device) * self.options.batch_size / (time.monotonic() - start_s)
                loss = on_device[-1].item()
                report(
                    f"  epoch {epoch}, step {step + 1} of {len(self.loader)}: loss {loss:.3f}, "
                    f"{rate * self.loader.world_size:,.0f} images/s"
                )
            if step_hook is not None and step_hook.end(step):
                break
        epoch_losses = torch.stack(on_device).tolist()
        seconds = time.monotonic() - start_s
        losses += epoch_losses
        after = self.loader.statistics()
        images = (after.images - before.images) * self.loader.world_size
        if after.epoch.late == "feeder" and after.verdict:
            report(f"  {after.verdict}")
        return EpochResult(
            epoch=epoch,
            steps=len(epoch_losses),
            images=images,
            seconds=seconds,
            images_per_s=images / seconds,
            wait_share=(after.wait_s - before.wait_s) / seconds,
            loss=sum(epoch_losses) / len(epoch_losses),
            lr=float(self.schedule.get_last_lr()[0]),
        )

    def _step(self, batch: Batch[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        with self.autocast:
            loss: torch.Tensor = self.loss(self.model(images), labels)
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.schedule.step()
        return loss.detach()

    def evaluate(self, loader: FeederLoader, trained: EpochResult) -> EpochResult:
        """Return ``trained`` with counts over the whole evaluation set and all ranks."""
        self.model.eval()
        start_s = time.monotonic()
        accuracy = Accuracy(loader.samples, self.device)
        with torch.inference_mode(), self.autocast:
            for batch in loader:
                accuracy.add(self.model(batch.images), batch)
        result = accuracy.result()
        return EpochResult(
            **{
                **asdict(trained),
                "val_images": result.images,
                "val_correct": result.correct,
                "val_correct_top5": result.correct_top5,
                "val_s": time.monotonic() - start_s,
            }
        )


def lr_factor(step: int, warmup_steps: float, steps: int) -> float:
    """Return the share of the full learning rate: linear warm-up, then cosine decay."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1.0, steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _parameter_groups(
    model: nn.Module, weight_decay: float
) -> list[dict[str, float | list[nn.Parameter]]]:
    """Return groups with weight decay (matrices, kernels) and without (biases, norms)."""
    kernels = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [
        {"params": kernels, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
