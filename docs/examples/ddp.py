"""Data-parallel training under torchrun, with an evaluation that counts each sample once.

    torchrun --nproc-per-node 2 ddp.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

Killed at any step and started again, it continues from its last checkpoint; with another number of
processes, too, if --batch-size times their number stays the same.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer_client import Accuracy, FeederLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64, help="of each process")
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="ddp.pt", help="resumes from it if it exists")
parser.add_argument("--checkpoint-steps", type=int, default=100)
options = parser.parse_args()

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
data = {"channels": 3, "dtype": torch.float32, "device": device}
data |= {"batch_size": options.batch_size, "image_size": options.image_size, "seed": options.seed}
# The loaders may come before the process group: they look for their rank at the first iter().
train_loader = FeederLoader(options.endpoint, dataset=options.dataset, split="train", **data)
val_loader = FeederLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

torch.manual_seed(options.seed)
model = nn.Sequential(
    nn.Conv2d(3, 16, 7, stride=4), nn.BatchNorm2d(16), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, len(train_loader.classes)),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

first_epoch = 0
if os.path.exists(options.checkpoint):
    state = torch.load(options.checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train_loader.load_state_dict(state["loader"])  # rank 0's state serves all ranks
    first_epoch = state["loader"]["epoch"]
replicated = DistributedDataParallel(model)

for epoch in range(first_epoch, options.epochs):
    replicated.train()
    train_loader.set_epoch(epoch)
    for step, (images, labels) in enumerate(train_loader, start=1):
        loss = nn.functional.cross_entropy(replicated(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options.checkpoint_steps == 0 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"loader": train_loader.state_dict()}, options.checkpoint + ".new")
            os.replace(options.checkpoint + ".new", options.checkpoint)

    model.eval()
    accuracy = Accuracy(val_loader.samples, device)
    with torch.inference_mode():
        for batch in val_loader:
            accuracy.add(model(batch.images), batch)  # leaves padding out
    result = accuracy.result()  # over all ranks; an error unless each sample was counted once
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: accuracy {result.correct}/{result.images}", flush=True)

dist.destroy_process_group()
