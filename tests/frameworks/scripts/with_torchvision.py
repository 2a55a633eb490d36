"""Runs a script where torchvision's C part does not load: ``with_torchvision.py SCRIPT ARGUMENTS``.

The package index has no torchvision for torch's CPU build. Its operators, which are for detection,
are declared here so that the rest can be imported; none of them is called.
"""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import torch

found = importlib.util.find_spec("torchvision")
assert found is not None
assert found.origin is not None
source = Path(found.origin).with_name("_meta_registrations.py").read_text()
library = torch.library.Library("torchvision", "DEF")
names = re.findall(r'register_meta\("(\w+)"\)', source) + re.findall(r"torchvision::(\w+)", source)
for name in sorted({*names, "nms", "qnms"}):
    library.define(f"{name}(Tensor boxes) -> Tensor")

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
