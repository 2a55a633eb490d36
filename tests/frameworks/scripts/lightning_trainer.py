"""Trains the example's module with the Trainer's and ModelCheckpoint's options, given as JSON."""

import json
import sys
from pathlib import Path

import lightning as L  # noqa: N812 -- as Lightning's documentation writes it
from lightning.pytorch.callbacks import ModelCheckpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs" / "examples"))
from lightning_module import Classifier, Data, parser

parser.add_argument("--trainer", type=json.loads, default={})
parser.add_argument("--saver", type=json.loads, default={})
parser.add_argument("--fresh-loaders", action="store_true", help="at each call of the hooks")


class FreshData(Data):
    def __init__(self, options):
        super().__init__(options)
        self.options = options

    def train_dataloader(self):
        return Data(self.options).train

    def val_dataloader(self):
        return Data(self.options).val


if __name__ == "__main__":
    options = parser.parse_args()
    data = FreshData(options) if options.fresh_loaders else Data(options)
    saver = ModelCheckpoint(options.checkpoint, save_last=True, **options.saver)
    trainer = L.Trainer(
        **{"max_epochs": options.epochs, "logger": False, "enable_progress_bar": False}
        | options.trainer,
        callbacks=[saver],
    )
    trainer.fit(Classifier(len(data.train.classes)), data, ckpt_path="last", weights_only=True)
