"""A training step on one core: its speed and its memory, by the ways to need less memory.

    step/plain          forward and backward pass of the whole batch, and the update
    step/recompute      the same with recomputation at every block (``trainer_client.reference``)
    step/accumulate-N   the gradients of N micro-batches added up, then one update
    memory/…            the most memory that such a step needs above what is resident before it
    memory/resident     what is resident before ``memory/plain``: the process, weights and momentum
    process/…           how far the process of ``step/…`` has grown since its start

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import nn

from feeder.errors import ConfigError, ResourceError
from feeder.pack.progress import ProgressLine
from feeder.process.child import (
    SINGLE_THREADS,
    child_environment,
    die_with_parent,
    python_command,
)
from trainer_client.reference.recompute import recompute_at
from trainer_client.reference.resnet import CHANNELS, MODELS

from ..line_process import LineProcess
from ..machine import choose_core, describe_machine, pinned_to
from ..report import RATE, Report, Result, single, summarise
from ..rounds import run_rounds, warm_up

MICRO_BATCHES: Final = {"plain": 1, "recompute": 1, "accumulate-2": 2, "accumulate-4": 4}
"""By variant; the first is the others' baseline."""

_POINTS: Final = ("layer?.*",)
_DEADLINE_S: Final = 600.0  # for a step
_MIB: Final = 1 << 20
_CLASSES: Final = 1000
_RESET_PEAK: Final = "5"  # proc(5), of /proc/PID/clear_refs
_RETURNING: Final = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18)}  # mallopt(3): mapped, and unmapped


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What to measure, for how long, and where."""

    model: str
    batch: int
    image_px: int
    rounds: int
    core: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step as its process has measured it."""

    cpu_s: float
    resident_bytes: int
    """Before the step."""
    peak_bytes: int
    """During the step: all that is resident."""

    @property
    def needed_mib(self) -> float:
        """The most that the step has added to what was resident before it."""
        return (self.peak_bytes - self.resident_bytes) / _MIB


def measure_training_step(options: StepOptions) -> Report:
    """Measure all variants; ConfigError where the model or the batch does not suit them."""
    if options.model not in MODELS:
        raise ConfigError(f"no model {options.model!r}: --model is one of {', '.join(MODELS)}")
    most = max(MICRO_BATCHES.values())
    if options.batch % most:
        raise ConfigError(
            f"--batch {options.batch} has no {most} equal micro-batches: use a multiple of {most}"
        )
    machine = describe_machine({"all contenders": options.core}, decoder=None)
    machine["libraries"] = {"torch": str(torch.__version__)}
    memory = {name: measure_memory(name, options) for name in MICRO_BATCHES}
    steps: dict[str, list[Step]] = {name: [] for name in MICRO_BATCHES}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(_start(name, options)) for name in steps}

        def contend(name: str, _first: int, _end: int) -> None:
            steps[name].append(_take_step(name, processes[name]))

        contenders = {name: partial(contend, name) for name in steps}
        warm_up(contenders, items=1, piece=1)
        progress = ProgressLine(sys.stderr)
        progress.begin("steps", "rounds", options.rounds)
        for _ in run_rounds(contenders, items=1, piece=1, rounds=options.rounds):
            progress.add(1)
        progress.end()
    grown = {
        name: (max(step.peak_bytes for step in taken) - taken[0].resident_bytes) / _MIB
        for name, taken in steps.items()
    }
    rates = {
        name: [options.batch / step.cpu_s for step in taken[1:]]  # without the warm-up
        for name, taken in steps.items()
    }
    results = [
        *_compare("step", RATE, rates),
        *_compare("memory", "MiB", {name: [step.needed_mib] for name, step in memory.items()}),
        single("memory/resident", "MiB", next(iter(memory.values())).resident_bytes / _MIB),
        *_compare("process", "MiB", {name: [value] for name, value in grown.items()}),
    ]
    measured = {key: getattr(options, key) for key in ("model", "batch", "image_px", "rounds")}
    return Report(bench="training-step", machine=machine, results=results, measured=measured)


def measure_memory(name: str, options: StepOptions) -> Step:
    """Return the second step of a variant in a process that returns what it frees."""
    with _start(name, options, _RETURNING) as process:
        _take_step(name, process)
        return _take_step(name, process)


def _compare(kind: str, unit: str, values: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return a row for each variant; the first is the others' baseline."""
    (plain, first), *others = values.items()
    base = summarise(f"{kind}/{plain}", unit, first)
    return [
        base,
        *(
            summarise(f"{kind}/{name}", unit, own, baseline=base, baseline_values=first)
            for name, own in others
        ),
    ]


def _start(
    name: str, options: StepOptions, environ: Mapping[str, str] | None = None
) -> LineProcess:
    command = python_command(
        f"{__package__}.training_step",
        *(os.getpid(), name, options.model, options.batch, options.image_px),
    )
    environment = child_environment({**SINGLE_THREADS, **(environ or {})})
    with pinned_to(frozenset({options.core})):
        return LineProcess(command, environ=environment)


def _take_step(name: str, process: LineProcess) -> Step:
    try:
        process.write_line("step")
        cpu_s, resident_bytes, peak_bytes = process.next_line(_DEADLINE_S).split()
    except TimeoutError:
        raise ResourceError(
            f"a step of {name} takes over {_DEADLINE_S:g} s: use a smaller --batch or --image-size"
        ) from None
    except (OSError, EOFError):
        raise ResourceError(
            f"the process of {name} has ended, perhaps for want of memory: use a smaller --batch"
        ) from None
    return Step(float(cpu_s), int(resident_bytes), int(peak_bytes))


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


def _measure(step: Callable[[], None]) -> Step:
    """Take a step; its peak is the process's highest so far where that cannot be reset."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, "ascii")
    resident_bytes = _read_memory("VmRSS")
    began_s = time.process_time()
    step()
    return Step(time.process_time() - began_s, resident_bytes, _read_memory("VmHWM"))


def _read_memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise ResourceError(f"/proc/self/status has no {field}: use a kernel that has it")


def main(parent: int, variant: str, model: str, batch: int, image_px: int) -> None:
    """Take a step for each line of standard input."""
    die_with_parent(parent)
    torch.set_num_threads(1)
    step = _make_step(variant, model, batch, image_px)
    for _ in sys.stdin:
        taken = _measure(step)
        sys.stdout.write(f"{taken.cpu_s} {taken.resident_bytes} {taken.peak_bytes}\n")
        sys.stdout.flush()


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    return measure_training_step(
        StepOptions(
            model=arguments.model,
            batch=arguments.batch,
            image_px=arguments.image_size,
            rounds=arguments.rounds,
            core=choose_core(arguments.core),
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
