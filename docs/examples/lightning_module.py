"""Lightning: a data module (or plain loaders), exact validation, resuming in mid-epoch.

    python lightning_module.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

Killed at any step and started again, it continues from Lightning's last checkpoint.
"""

import argparse
from pathlib import Path

import lightning as L  # noqa: N812 -- as Lightning's documentation writes it
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from trainer_client import PADDING_LABEL, FeederLoader


class Data(L.LightningDataModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        data = {"batch_size": options.batch_size, "image_size": options.image_size}
        data |= {"channels": 3, "dtype": torch.float32, "seed": options.seed}
        data["endpoint"] = options.endpoint
        self.train = FeederLoader(dataset=options.dataset, split="train", **data)
        data["classes_of"] = self.train
        self.val = FeederLoader(dataset=options.val_dataset, split="val", **data)

    def train_dataloader(self) -> FeederLoader:
        return self.train

    def val_dataloader(self) -> FeederLoader:
        return self.val


class Classifier(L.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=4), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
        )  # fmt: skip
        # Over several ranks, the last batches are filled up with rows of PADDING_LABEL. One without
        # real rows has NaN as its mean loss: add up rows over all ranks, then divide.
        self.val_loss = MeanMetric()
        self.accuracy = MulticlassAccuracy(classes, average="micro", ignore_index=PADDING_LABEL)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], step: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], step: int) -> None:
        images, labels = batch
        logits = self.model(images)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        self.val_loss.update(losses, weight=labels != PADDING_LABEL)
        self.accuracy.update(logits, labels)
        self.log_dict({"val_loss": self.val_loss, "accuracy": self.accuracy}, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64, help="of each device")
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", type=Path, default="lightning", help="folder to resume from")
parser.add_argument("--checkpoint-steps", type=int, default=100)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--plain-loaders", action="store_true")

if __name__ == "__main__":
    options = parser.parse_args()
    L.seed_everything(options.seed)
    data = Data(options)
    steps = options.checkpoint_steps
    last = ModelCheckpoint(options.checkpoint, save_last=True, every_n_train_steps=steps)
    trainer = L.Trainer(
        max_epochs=options.epochs,
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        callbacks=[last],
        logger=False,
    )
    model = Classifier(len(data.train.classes))
    resume = {"ckpt_path": "last", "weights_only": True}
    if options.plain_loaders:
        trainer.fit(model, data.train, data.val, **resume)
    else:
        trainer.fit(model, data, **resume)
    if trainer.is_global_zero:
        for name in ("val_loss", "accuracy"):
            print(f"{name} {trainer.callback_metrics[name]:.6f}", flush=True)
