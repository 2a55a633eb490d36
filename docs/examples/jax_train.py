"""JAX on a NumpyLoader: int8 pixels go to the device, which normalises them and adds the channel.

    python jax_train.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

Killed at any step and started again, it continues from its last checkpoint. Needs no torch.
"""

import argparse
import json
import os

import jax
import jax.numpy as jnp
import numpy as np

from trainer_client import IMAGENET_MEAN, IMAGENET_STD, NumpyLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="jax_train.npz", help="resumes from it if it exists")
parser.add_argument("--checkpoint-steps", type=int, default=100)
parser.add_argument("--rank", type=int, default=0, help="jax.process_index() of a cluster")
parser.add_argument("--world-size", type=int, default=1, help="jax.process_count()")
options = parser.parse_args()

data = {"batch_size": options.batch_size, "image_size": options.image_size, "seed": options.seed}
data |= {"rank": options.rank, "world_size": options.world_size}
train_loader = NumpyLoader(options.endpoint, dataset=options.dataset, **data)
val_loader = NumpyLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)


def logits(weights, pixels):
    """Normalise int8 (N, S, S, 3), pad to four channels, and classify."""
    mean, std = 255 * jnp.array(IMAGENET_MEAN) - 128, 255 * jnp.array(IMAGENET_STD)
    images = jnp.pad((pixels - mean) / std, ((0, 0), (0, 0), (0, 0), (0, 1)))
    axes = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(
        images, weights["kernel"], (4, 4), "SAME", dimension_numbers=axes
    )
    return jax.nn.relu(hidden).mean((1, 2)) @ weights["head"]


@jax.jit
def train_step(weights, pixels, labels):
    def loss_of(weights):
        chosen = jax.nn.log_softmax(logits(weights, pixels))
        return -chosen[jnp.arange(len(labels)), labels].mean()

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return jax.tree.map(lambda value, slope: value - 0.1 * slope, weights, gradients), loss


@jax.jit
def count_correct(weights, pixels, labels):
    return (logits(weights, pixels).argmax(1) == labels).sum()  # no guess equals padding's -100


key = jax.random.key(options.seed)
weights = {
    "kernel": 0.1 * jax.random.normal(key, (7, 7, 4, 16)),
    "head": jnp.zeros((16, len(train_loader.classes))),
}
first_epoch = 0
if os.path.exists(options.checkpoint):
    with np.load(options.checkpoint) as saved:
        weights = {name: jnp.array(saved[name]) for name in weights}
        state = json.loads(str(saved["loader"]))
    train_loader.load_state_dict(state)
    first_epoch = state["epoch"]

for epoch in range(first_epoch, options.epochs):
    train_loader.set_epoch(epoch)
    for step, (pixels, labels) in enumerate(train_loader, start=1):
        weights, loss = train_step(weights, pixels, labels)
        if step % options.checkpoint_steps == 0:
            saved = {**weights, "loader": json.dumps(train_loader.state_dict())}
            np.savez(options.checkpoint + ".new.npz", **saved)
            os.replace(options.checkpoint + ".new.npz", options.checkpoint)
    correct = total = 0
    for batch in val_loader:
        pixels, labels = batch
        correct += int(count_correct(weights, pixels, labels))
        total += batch.valid
    print(f"epoch {epoch}: loss {loss:.4f}, accuracy {correct}/{total}", flush=True)
