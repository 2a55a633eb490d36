"""A loader's defaults for torch: the device, and the type that it computes in."""

import os

import torch

from feeder.errors import ConfigError


def resolve_device(device: torch.device | str | None) -> torch.device:
    """Return the device with its index; None is this process's CUDA device, else the CPU.

    That is the one that LOCAL_RANK has, where a launcher has set it and the process has not chosen
    a device yet: loaders are often made before the process group.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved != torch.device("cuda"):  # it names an index, or is no CUDA device
        return resolved
    current = torch.cuda.current_device()
    local_rank = os.environ.get("LOCAL_RANK", "")
    if not current and local_rank.isdecimal() and int(local_rank) < torch.cuda.device_count():
        current = int(local_rank)
    return torch.device("cuda", current)


def check_device(device: torch.device, *, is_default: bool) -> None:
    """Raise ConfigError if a default ``device`` is no longer this process's CUDA device."""
    if is_default and device.type == "cuda" and device.index != torch.cuda.current_device():
        raise ConfigError(
            f"this loader was made for {device}, before the process chose "
            f"cuda:{torch.cuda.current_device()}: pass device= to the loader, or make it after "
            "torch.cuda.set_device()"
        )


def resolve_memory_format(
    memory_format: torch.memory_format | None, device: torch.device
) -> torch.memory_format:
    """Return ``memory_format``; None is contiguous on a CPU, else channels_last.

    CUDA's matrix units want the latter; on a CPU torch 2.14 crashes with it while it trains some
    models, such as the Hugging Face Trainer's example.
    """
    if memory_format is None:
        is_cpu = device.type == "cpu"
        memory_format = torch.contiguous_format if is_cpu else torch.channels_last
    if memory_format not in (torch.channels_last, torch.contiguous_format):
        raise ConfigError(
            "memory_format must be torch.channels_last or torch.contiguous_format, got "
            f"{memory_format!r}"
        )
    return memory_format


def resolve_dtype(dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return ``dtype``; None is float32 on a CPU, where halves are slow, else float16."""
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.float16
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(
            f"dtype must be torch.float16, torch.bfloat16 or torch.float32, got {dtype!r}"
        )
    return dtype
