"""A loader's defaults for torch: the device, and the type that it computes in."""

import torch


def resolve_device(device: torch.device | str | None) -> torch.device:
    """Return the device with its index; None is CUDA's current device, else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved == torch.device("cuda"):  # names no index
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def resolve_dtype(dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return ``dtype``; None is float32 on a CPU, where halves are slow, else float16."""
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.float16
    return dtype
