"""Reads network cards and accelerators with the NUMA nodes that they are attached to."""

from feeder.doctor.findings.facts import Accelerator, NetworkCard
from feeder.doctor.kernel_files import KernelFiles

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana"}
"""PCI vendors of accelerators. Others of class "display" draw a console's screen (ASPEED, Matrox,
virtual machines)."""

_DISPLAY, _ACCELERATOR = "0x03", "0x12"
_UP = ("up", "unknown")
"""Some drivers set no state, so "unknown" is to be taken as up (the kernel's operstates.rst)."""
_SHOWN_MAX = 64
_MODEL_LETTERS_MAX = 64


def read_cards(files: KernelFiles) -> tuple[NetworkCard, ...]:
    """Return the interfaces with a device of their own: no bridges, bonds or loopback."""
    cards: list[NetworkCard] = []
    for name in files.entries("sys/class/net")[:_SHOWN_MAX]:
        folder = f"sys/class/net/{name}"
        if not files.entries(f"{folder}/device"):
            continue
        speed = files.number(f"{folder}/speed")
        node = files.number(f"{folder}/device/numa_node")
        if node is None:  # a virtio device has none of its own; its PCI function may
            node = files.number(f"{folder}/device/../numa_node")
        cards.append(
            NetworkCard(
                name=name,
                is_up=files.text(f"{folder}/operstate", 64) in _UP,
                speed_mbit=speed if speed is not None and speed > 0 else None,
                node=node if node is not None and node >= 0 else None,
            )
        )
    return tuple(cards)


def read_accelerators(files: KernelFiles) -> tuple[Accelerator, ...]:
    """Return the GPUs and other accelerators on the PCI bus."""
    found: list[Accelerator] = []
    for address in files.entries("sys/bus/pci/devices"):
        folder = f"sys/bus/pci/devices/{address}"
        kind = files.text(f"{folder}/class", 64)
        if not kind.startswith((_DISPLAY, _ACCELERATOR)):
            continue
        vendor, device = (files.text(f"{folder}/{name}", 64) for name in ("vendor", "device"))
        if not (vendor.isalnum() and device.isalnum()):
            continue
        if vendor not in _VENDORS and not kind.startswith(_ACCELERATOR):
            continue
        node = files.number(f"{folder}/numa_node")
        found.append(
            Accelerator(
                address=address,
                name=_read_model(files, address) or f"{_VENDORS.get(vendor, vendor)} {device}",
                node=node if node is not None and node >= 0 else None,
            )
        )
    return tuple(found[:_SHOWN_MAX])


def _read_model(files: KernelFiles, address: str) -> str:
    """Return the name that NVIDIA's driver gives a GPU, such as "NVIDIA A100-SXM4-40GB", or ""."""
    path = f"proc/driver/nvidia/gpus/{address}/information"
    return files.fields(path).get("Model", "")[:_MODEL_LETTERS_MAX]
