"""Packs the images of a database: here SQLite, with an image in each row and any number of tags.

    python pack_database.py photos.db photos

The cursor is read row by row. After an interruption the same command resumes.
"""

import argparse
import sqlite3

import feeder

parser = argparse.ArgumentParser()
parser.add_argument("database")
parser.add_argument("dataset", help="the folder to pack into")
options = parser.parse_args()

rows = sqlite3.connect(f"file:{options.database}?mode=ro", uri=True).execute(
    """
    SELECT photo.path, photo.image, group_concat(tag.name, char(10))
    FROM photo LEFT JOIN tag ON tag.photo = photo.id
    GROUP BY photo.id
    """
)
packed = feeder.pack_samples(
    ((path, image, tags.split("\n") if tags else []) for path, image, tags in rows),
    options.dataset,
    labels="multi",
)
print(f"{packed.samples:,} samples with {len(packed.classes)} tags in {packed.path}")
