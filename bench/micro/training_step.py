"""A training step on one core: its speed and its memory, by the ways to need less memory.

Each row has a process of its own, pinned to the core, with one thread. Steps take turns and are
timed in CPU time, as in ``loaders``. Gradients are freed between steps, so they are part of the
memory of each. For ``memory`` the allocator returns each large block as soon as it is freed, which
is slow and repeats to a MiB. For ``step`` and ``process`` it is glibc's as it is, which keeps freed
blocks and fragments.

    python -m bench.micro.training_step PARENT_PID VARIANT MODEL BATCH IMAGE_PX

is such a process. For each line it reads it takes a step and writes ``CPU_S RESIDENT_BYTES
PEAK_BYTES``.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import nn

from feeder.errors import ConfigError, ResourceError
from feeder.process.child import (
    SINGLE_THREADS,
    child_environment,
    die_with_parent,
    python_command,
)
from trainer_client.reference.recompute import recompute_at
from trainer_client.reference.resnet import CHANNELS, MODELS

from ..footprint import status_bytes
from ..line_process import LineProcess
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, compare, single
from ..rounds import measure

MICRO_BATCHES: Final = {"plain": 1, "recompute": 1, "accumulate-2": 2, "accumulate-4": 4}
"""By variant; the first is the others' baseline."""

_POINTS: Final = ("layer?.*",)
_DEADLINE_S: Final = 600.0  # for a step
_MIB: Final = 1 << 20
_CLASSES: Final = 1000
_RESET_PEAK: Final = "5"  # proc(5), of /proc/PID/clear_refs
_RETURNING: Final = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18)}  # mallopt(3): mapped, and unmapped


class Step(NamedTuple):
    """One step as its process has measured it; the peak is all that is resident during it."""

    cpu_s: float
    resident_bytes: int
    peak_bytes: int

    @property
    def needed_mib(self) -> float:
        """The most that the step has added to what was resident before it."""
        return (self.peak_bytes - self.resident_bytes) / _MIB


class _StepProcess(LineProcess):
    def __init__(
        self, variant: str, arguments: argparse.Namespace, environ: Mapping[str, str] | None = None
    ) -> None:
        self._variant = variant
        sizes = arguments.model, arguments.batch, arguments.image_size
        command = python_command(f"{__package__}.training_step", os.getpid(), variant, *sizes)
        with pinned_to(choose_core(arguments.core)):
            super().__init__(
                command, environ=child_environment({**SINGLE_THREADS, **(environ or {})})
            )

    def take_step(self) -> Step:
        """ResourceError when it takes too long, or the process has ended."""
        try:
            self.write_line("step")
            cpu_s, resident_bytes, peak_bytes = self.next_line(_DEADLINE_S).split()
        except TimeoutError:
            problem = f"a step of {self._variant} takes over {_DEADLINE_S:g} s"
        except (OSError, EOFError):
            problem = f"the process of {self._variant} has ended, perhaps for want of memory"
        else:
            return Step(float(cpu_s), int(resident_bytes), int(peak_bytes))
        raise ResourceError(f"{problem}: use a smaller --batch or --image-size")


def run(arguments: argparse.Namespace) -> Report:
    """Measure all variants; ConfigError where the model or the batch does not suit them."""
    if arguments.model not in MODELS:
        raise ConfigError(f"no model {arguments.model!r}: --model is one of {', '.join(MODELS)}")
    batch, most = arguments.batch, max(MICRO_BATCHES.values())
    if batch % most:
        raise ConfigError(
            f"--batch {batch} has no {most} equal micro-batches: use a multiple of {most}"
        )
    core = choose_core(arguments.core)
    machine = describe_machine({"all contenders": core}, decoder=None)
    machine["libraries"] = {"torch": str(torch.__version__)}
    memory = {name: measure_memory(name, arguments) for name in MICRO_BATCHES}
    steps: dict[str, list[Step]] = {name: [] for name in MICRO_BATCHES}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(_StepProcess(name, arguments)) for name in MICRO_BATCHES
        }

        def take_step(name: str, first: int, end: int) -> None:
            steps[name].append(processes[name].take_step())

        contenders = {name: partial(take_step, name) for name in MICRO_BATCHES}
        measure(contenders, rounds=arguments.rounds, verb="taking steps,")
    rates: dict[str, list[float]] = {}
    grown: dict[str, list[float]] = {}
    for name, (warm_up, *taken) in steps.items():
        rates[f"step/{name}"] = [batch / step.cpu_s for step in taken]
        peak_bytes = max(step.peak_bytes for step in (warm_up, *taken))
        grown[f"process/{name}"] = [(peak_bytes - warm_up.resident_bytes) / _MIB]
    needed = {f"memory/{name}": [step.needed_mib] for name, step in memory.items()}
    results = [
        *compare(rates, RATE),
        *compare(needed, "MiB"),
        single("memory/resident", "MiB", next(iter(memory.values())).resident_bytes / _MIB),
        *compare(grown, "MiB"),
    ]
    measured = {
        "model": arguments.model,
        "batch": batch,
        "image_px": arguments.image_size,
        "rounds": arguments.rounds,
    }
    return Report(bench="training-step", machine=machine, results=results, measured=measured)


def measure_memory(variant: str, arguments: argparse.Namespace) -> Step:
    """Return the second step of a variant in a process that returns what it frees."""
    with _StepProcess(variant, arguments, _RETURNING) as process:
        process.take_step()
        return process.take_step()


def _make_step(variant: str, model_name: str, batch: int, image_px: int) -> Callable[[], None]:
    """Return the step of a variant, which leaves no gradients."""
    torch.manual_seed(0)
    model: nn.Module = MODELS[model_name](_CLASSES)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if variant == "recompute":
        recompute_at(model, _POINTS)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, CHANNELS, image_px, image_px)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(_CLASSES, (batch,))
    parts = MICRO_BATCHES[variant]

    def step() -> None:
        for some, theirs in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(model(some), theirs) / parts
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def main(parent: int, variant: str, model: str, batch: int, image_px: int) -> None:
    die_with_parent(parent)
    torch.set_num_threads(1)
    step = _make_step(variant, model, batch, image_px)
    for _ in sys.stdin:
        # Where the peak cannot be reset, it is the process's highest so far.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK, "ascii")
        resident_bytes = status_bytes(os.getpid(), "VmRSS")
        began_s = time.process_time()
        step()
        cpu_s = time.process_time() - began_s
        print(cpu_s, resident_bytes, status_bytes(os.getpid(), "VmHWM"), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
