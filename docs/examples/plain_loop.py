"""A plain training loop, which Feeder changes in the lines that make the loaders.

    python plain_loop.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

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
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="plain_loop.pt", help="resumes from it if it exists")
parser.add_argument("--checkpoint-steps", type=int, default=100)
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = {"channels": 3, "dtype": torch.float32, "device": device}
data |= {"batch_size": options.batch_size, "image_size": options.image_size, "seed": options.seed}
train_loader = FeederLoader(options.endpoint, dataset=options.dataset, split="train", **data)
val_loader = FeederLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)

torch.manual_seed(options.seed)
model = nn.Sequential(
    nn.Conv2d(3, 16, 7, stride=4), nn.BatchNorm2d(16), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, len(train_loader.classes)),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
forward = torch.compile(model) if options.compile else model


def save() -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"loader": train_loader.state_dict()}, options.checkpoint + ".new")
    os.replace(options.checkpoint + ".new", options.checkpoint)


first_epoch = 0
if os.path.exists(options.checkpoint):
    state = torch.load(options.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train_loader.load_state_dict(state["loader"])  # continues at the next step, in mid-epoch too
    first_epoch = state["loader"]["epoch"]

for epoch in range(first_epoch, options.epochs):
    model.train()
    train_loader.set_epoch(epoch)
    for step, (images, labels) in enumerate(train_loader, start=1):
        loss = nn.functional.cross_entropy(forward(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options.checkpoint_steps == 0:
            save()

    model.eval()
    correct = total = 0
    with torch.inference_mode():
        for images, labels in val_loader:  # the last batch is short: each sample counts once
            correct += (forward(images).argmax(1) == labels).sum().item()
            total += len(labels)
    print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {correct}/{total}", flush=True)
