"""SimCLR's step from two crops of each image, which the feeder cuts from one decode.

    python self_supervised.py tcp://127.0.0.1:5555 --dataset train

Killed at any step and started again, it continues from its last checkpoint.
"""

import argparse
import os

import torch
from torch import nn

from trainer_client import FeederLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--temperature", type=float, default=0.2)
parser.add_argument("--checkpoint", default="self_supervised.pt", help="resumes from it")
parser.add_argument("--checkpoint-steps", type=int, default=100)
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = FeederLoader(
    options.endpoint,
    dataset=options.dataset,
    batch_size=options.batch_size,
    seed=options.seed,
    channels=3,
    dtype=torch.float32,
    device=device,
    recipe={
        "crops": [{"count": 2, "size": options.image_size, "scale": [0.2, 1.0]}],
        "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1,
        "greyscale_probability": 0.2,
    },
)  # fmt: skip

torch.manual_seed(options.seed)
model = nn.Sequential(
    nn.Conv2d(3, 32, 7, stride=4), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32),
).to(device)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def contrast(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """NT-Xent: of all other crops in the batch, which one is of the same image?"""
    count = len(first)
    features = nn.functional.normalize(torch.cat([first, second]), dim=1)
    logits = features @ features.T / options.temperature
    logits.fill_diagonal_(-torch.inf)
    partners = torch.arange(2 * count, device=device).roll(count)
    return nn.functional.cross_entropy(logits, partners)


def save() -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"loader": loader.state_dict()}, options.checkpoint + ".new")
    os.replace(options.checkpoint + ".new", options.checkpoint)


first_epoch = 0
if os.path.exists(options.checkpoint):
    state = torch.load(options.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])  # continues at the next step, in mid-epoch too
    first_epoch = state["loader"]["epoch"]

for epoch in range(first_epoch, options.epochs):
    loader.set_epoch(epoch)
    total = 0.0
    for step, batch in enumerate(loader, start=1):
        (pair,) = batch.crops  # (2, N, 3, S, S): one group of two crops
        first, second = model(pair.flatten(0, 1)).chunk(2)  # both in one pass
        loss = contrast(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % options.checkpoint_steps == 0:
            save()
    save()
    print(f"epoch {epoch}: mean loss {total / step:.4f} over {step} steps", flush=True)
