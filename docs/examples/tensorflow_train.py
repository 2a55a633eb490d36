"""TensorFlow on a NumpyLoader, through tf.data: float32 images, normalised.

    python tensorflow_train.py tcp://127.0.0.1:5555 --dataset train --val-dataset val

Killed at any step and started again, it continues from its last checkpoint. Needs no torch.
"""

import argparse

import tensorflow as tf

from trainer_client import NumpyLoader

parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("--dataset", required=True)
parser.add_argument("--val-dataset", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="tensorflow_train", help="prefix of its files")
parser.add_argument("--checkpoint-steps", type=int, default=100)
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world-size", type=int, default=1)
options = parser.parse_args()

data = {"batch_size": options.batch_size, "image_size": options.image_size, "seed": options.seed}
data |= {"rank": options.rank, "world_size": options.world_size}
data |= {"dtype": "float32", "channels": 3}
train_loader = NumpyLoader(options.endpoint, dataset=options.dataset, **data)
val_loader = NumpyLoader(
    options.endpoint, dataset=options.val_dataset, split="val", classes_of=train_loader, **data
)


def as_dataset(loader):
    """Return a tf.data.Dataset of which each pass is the loader's next epoch."""
    size = options.image_size
    images = tf.TensorSpec((None, size, size, 3), tf.float32)
    labels = tf.TensorSpec((None,), tf.int64)
    return tf.data.Dataset.from_generator(
        lambda: map(tuple, loader), output_signature=(images, labels)
    )


tf.keras.utils.set_random_seed(options.seed)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, 7, strides=4, activation="relu"),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(len(train_loader.classes)),
    ]
)
model.build((None, options.image_size, options.image_size, 3))
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(0.1)

# tf.data takes batches from the loader before training has them, so what is saved is the number of
# steps that were trained, not the loader's state.
steps = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, steps=steps)
manager = tf.train.CheckpointManager(checkpoint, options.checkpoint, max_to_keep=1)
checkpoint.restore(manager.latest_checkpoint)


@tf.function(reduce_retracing=True)
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


first_epoch, done = divmod(int(steps), len(train_loader))
train_loader.skip_first_batches(done)
for epoch in range(first_epoch, options.epochs):
    train_loader.set_epoch(epoch)
    for images, labels in as_dataset(train_loader):
        loss = train_step(images, labels)
        steps.assign_add(1)
        if steps % options.checkpoint_steps == 0:
            manager.save()
    correct = total = 0
    for images, labels in as_dataset(val_loader):
        guesses = tf.argmax(model(images), 1)
        correct += int(tf.reduce_sum(tf.cast(guesses == labels, tf.int64)))
        total += int(tf.reduce_sum(tf.cast(labels >= 0, tf.int64)))  # padding has the label -100
    print(f"epoch {epoch}: loss {float(loss):.4f}, accuracy {correct}/{total}", flush=True)
