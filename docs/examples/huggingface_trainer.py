"""Image classification with the Hugging Face Trainer.

    python huggingface_trainer.py tcp://127.0.0.1:5555 --dataset train --val-dataset val
    torchrun --nproc-per-node 2 huggingface_trainer.py … (--batch-size is that of each rank)

Killed at any step and started again, it continues from the Trainer's last checkpoint.
"""

import argparse
import os

import torch
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from trainer_client import FeederLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", default="huggingface_trainer", help="resumes from it if it exists")
parser.add_argument("--checkpoint-steps", type=int, default=100)
options = parser.parse_args()


class ImageBatches:
    """A loader whose batches are what the Trainer passes to a model for image classification."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for images, labels in self.loader:
            yield {"pixel_values": images, "labels": labels}

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):  # dataset, batch_size, set_epoch, …
        return getattr(self.loader, name)


class ContinueInMidEpoch(TrainerCallback):
    """Has the loader begin after the steps that the checkpoint has, without decoding them again."""

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        steps = state.global_step * args.gradient_accumulation_steps
        train_dataloader.skip_first_batches(steps % len(train_dataloader))


class FeederTrainer(Trainer):
    def get_train_dataloader(self):
        return ImageBatches(train_loader)

    def get_eval_dataloader(self, eval_dataset=None):
        return ImageBatches(val_loader)


def count_correct(prediction):
    real = prediction.label_ids >= 0  # over several ranks, the last batches are padded
    correct = prediction.predictions.argmax(1)[real] == prediction.label_ids[real]
    return {"accuracy": correct.mean(), "images": int(real.sum())}


arguments = TrainingArguments(
    options.output,
    num_train_epochs=options.epochs,
    per_device_train_batch_size=options.batch_size,
    per_device_eval_batch_size=options.batch_size,
    eval_strategy="epoch",
    save_steps=options.checkpoint_steps,
    ignore_data_skip=True,  # ContinueInMidEpoch does it
    use_cpu=not torch.cuda.is_available(),
    report_to="none",
    seed=options.seed,
)
data = {"channels": 3, "dtype": torch.float32, "device": arguments.device}
data |= {"batch_size": options.batch_size, "image_size": options.image_size, "seed": options.seed}
train_loader = FeederLoader(options.endpoint, dataset=options.dataset, **data)
val_loader = FeederLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)
config = ResNetConfig(
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    layer_type="basic",
    num_labels=len(train_loader.classes),
)
trainer = FeederTrainer(
    ResNetForImageClassification(config),
    arguments,
    train_dataset=train_loader.dataset,  # its name, size and classes
    eval_dataset=val_loader.dataset,
    compute_metrics=count_correct,
    callbacks=[ContinueInMidEpoch()],
)
last = get_last_checkpoint(options.output) if os.path.isdir(options.output) else None
trainer.train(resume_from_checkpoint=last)
