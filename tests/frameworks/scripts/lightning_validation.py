"""Validates the example's untrained module; prints Lightning's loss and that of a plain loop."""

import sys
from pathlib import Path

import lightning as L  # noqa: N812 -- as Lightning's documentation writes it
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs" / "examples"))
from lightning_module import Classifier, Data, parser

from trainer_client import FeederLoader


def plain_loss(model, options):
    """Return the mean loss of all samples, in float64, from one rank without padding."""
    model.double().eval()
    loader = FeederLoader(
        options.endpoint,
        dataset=options.val_dataset,
        split="val",
        batch_size=options.batch_size,
        image_size=options.image_size,
        channels=3,
        rank=0,
        world_size=1,
    )
    losses = []
    with loader, torch.no_grad():
        for images, labels in loader:
            logits = model.model(images.double())
            losses += nn.functional.cross_entropy(logits, labels, reduction="none").tolist()
    return sum(losses) / loader.samples


if __name__ == "__main__":
    options = parser.parse_args()
    L.seed_everything(options.seed)
    data = Data(options)
    model = Classifier(len(data.train.classes))
    trainer = L.Trainer(
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
    )
    (metrics,) = trainer.validate(model, data, verbose=False)
    if trainer.is_global_zero:
        sys.stdout.write(f"losses {metrics['val_loss']!r} {plain_loss(model, options)!r}\n")
