"""A timm model with timm's loss, optimizer, scheduler and meters.

    python timm_train.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

Killed at any step and started again, it continues from its last checkpoint.
"""

import argparse
import os

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, accuracy

from trainer_client import FeederLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--model", default="resnet10t")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="timm_train.pt", help="resumes from it if it exists")
parser.add_argument("--checkpoint-steps", type=int, default=100)
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(options.seed)
data = {"dtype": torch.float32, "device": device, "image_size": options.image_size}
data |= {"batch_size": options.batch_size, "seed": options.seed}
train_loader = FeederLoader(options.endpoint, dataset=options.dataset, **data)
val_loader = FeederLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)
classes = len(train_loader.classes)
# timm's models take any number of channels: four, the last of zeros, are the fastest.
model = timm.create_model(options.model, num_classes=classes, in_chans=4)
model = model.to(device, memory_format=torch.channels_last)
loss_of = LabelSmoothingCrossEntropy(0.1)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.1, weight_decay=5e-5, momentum=0.9)
scheduler, _ = create_scheduler_v2(
    optimizer,
    num_epochs=options.epochs,
    updates_per_epoch=len(train_loader),
    step_on_epochs=False,
)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": train_loader}

first_epoch = 0
if os.path.exists(options.checkpoint):
    state = torch.load(options.checkpoint)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    first_epoch = state["loader"]["epoch"]

for epoch in range(first_epoch, options.epochs):
    model.train()
    train_loader.set_epoch(epoch)
    losses = AverageMeter()
    for step, (images, labels) in enumerate(train_loader, start=1):
        loss = loss_of(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(labels))
        position = train_loader.state_dict()
        scheduler.step_update(position["epoch"] * len(train_loader) + position["step"])
        if step % options.checkpoint_steps == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state, options.checkpoint + ".new")
            os.replace(options.checkpoint + ".new", options.checkpoint)

    model.eval()
    top1 = AverageMeter()
    with torch.inference_mode():
        for images, labels in val_loader:  # the last batch is short: each sample counts once
            top1.update(accuracy(model(images), labels)[0].item(), len(labels))
    print(
        f"epoch {epoch}: loss {losses.avg:.4f}, accuracy {top1.avg:.1f} % of {top1.count}",
        flush=True,
    )
