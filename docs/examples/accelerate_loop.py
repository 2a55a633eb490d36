"""A loop with Hugging Face Accelerate, which saves and resumes in mid-epoch.

    accelerate launch accelerate_loop.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

Killed at any step and started again, it continues from its last checkpoint.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from trainer_client import Accuracy, FeederLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64, help="of each process")
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoints", default="accelerate", help="folder to resume from")
parser.add_argument("--checkpoint-steps", type=int, default=100)
parser.add_argument("--count-steps", action="store_true", help="resume by skip_first_batches")
options = parser.parse_args()

accelerator = Accelerator()
data = {"channels": 3, "dtype": torch.float32, "device": accelerator.device}
data |= {"batch_size": options.batch_size, "image_size": options.image_size, "seed": options.seed}
train_loader = FeederLoader(options.endpoint, dataset=options.dataset, split="train", **data)
val_loader = FeederLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)

torch.manual_seed(options.seed)
model = nn.Sequential(
    nn.Conv2d(3, 16, 7, stride=4), nn.BatchNorm2d(16), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, len(train_loader.classes)),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# prepare() returns the loaders as they are: they know their rank and deliver on the device.
model, optimizer, train_loader, val_loader = accelerator.prepare(
    model, optimizer, train_loader, val_loader
)
if not options.count_steps:
    accelerator.register_for_checkpointing(train_loader)

done = 0  # steps of all epochs
saved = sorted(Path(options.checkpoints).glob("step_*"), key=lambda path: int(path.name[5:]))
if saved:
    accelerator.load_state(saved[-1])
    done = int(saved[-1].name[5:])
first_epoch, skipped = divmod(done, len(train_loader))

for epoch in range(first_epoch, options.epochs):
    model.train()
    train_loader.set_epoch(epoch)
    if options.count_steps and epoch == first_epoch:
        train_loader.skip_first_batches(skipped)  # accelerate's takes a DataLoader only
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        done += 1
        if done % options.checkpoint_steps == 0:
            accelerator.save_state(f"{options.checkpoints}/step_{done}")

    model.eval()
    accuracy = Accuracy(val_loader.samples, accelerator.device)
    with torch.inference_mode():
        for batch in val_loader:
            accuracy.add(model(batch.images), batch)  # gather_for_metrics would keep padding
    result = accuracy.result()  # over all processes
    accelerator.print(f"epoch {epoch}: accuracy {result.correct}/{result.images}", flush=True)
accelerator.end_training()
