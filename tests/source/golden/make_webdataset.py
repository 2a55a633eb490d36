"""Writes the tars beside it with webdataset, GNU tar and pzstd; see README.md. No test runs it."""

import hashlib
import io
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image

HERE = Path(__file__).parent
WORDS = ("tench", "goldfish", "great white shark")


def encoded(number: int, form: str) -> bytes:
    """Return an image of 16 + number by 12 pixels."""
    shades = np.arange(12 * (16 + number) * 3, dtype=np.uint32) * (number + 3) % 256
    picture = Image.fromarray(shades.astype(np.uint8).reshape(12, -1, 3))
    file = io.BytesIO()
    picture.save(file, form, quality=50)
    return file.getvalue()


def write(name: str, samples: list[dict[str, Any]]) -> None:
    with webdataset.TarWriter(str(HERE / name), mtime=0) as tar:
        for sample in samples:
            tar.write(sample)


def main() -> None:
    jpegs = [encoded(number, "JPEG") for number in range(5)]
    pngs = [encoded(number, "PNG") for number in range(3)]
    write(
        "webdataset-cls.tar",
        [{"__key__": f"{n:06d}", "jpg": jpegs[n], "cls": n * n, "json": {}} for n in range(5)],
    )
    meta = [{"label": [n, n + 2], "a": {"b": n / 2}, "text": WORDS[n]} for n in range(3)]
    write(
        "webdataset-json.tar.gz",
        [{"__key__": f"dir/x{n}", "png": pngs[n], "json": meta[n]} for n in range(3)],
    )
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder) / "webdataset-txt.tar"
        with webdataset.TarWriter(str(tar), mtime=0) as writer:
            for n, word in enumerate(WORDS):
                key = f"sample{n}"
                writer.write(
                    {"__key__": key, "left.jpg": jpegs[n], "right.png": pngs[n], "txt": word}
                )
        written = HERE / f"{tar.name}.zst"
        subprocess.run(["pzstd", "-q", "-f", "-p", "2", str(tar), "-o", str(written)], check=True)
    read = {}
    for name in ("webdataset-cls.tar", "webdataset-json.tar.gz"):
        read[name] = [
            shown(sample) for sample in webdataset.WebDataset(str(HERE / name), shardshuffle=False)
        ]
    read["webdataset-txt.tar.zst"] = [
        {
            "key": f"sample{n}",
            "left.jpg": hashlib.sha256(jpegs[n]).hexdigest(),
            "right.png": hashlib.sha256(pngs[n]).hexdigest(),
            "txt": word,
        }
        for n, word in enumerate(WORDS)
    ]
    (HERE / "webdataset.json").write_text(json.dumps(read, indent=1) + "\n")
    for form in ("gnu", "pax"):
        write_kinds(form, jpegs[0])


def shown(sample: dict[str, Any]) -> dict[str, str]:
    """Return what webdataset has read: labels as text, of images the SHA-256."""
    out = {"key": sample["__key__"]}
    for field, data in sample.items():
        if field in ("jpg", "png"):
            out[field] = hashlib.sha256(data).hexdigest()
        elif not field.startswith("__"):
            out[field] = data.decode()
    return out


def write_kinds(form: str, image: bytes) -> None:
    """Write a member of every kind with GNU tar."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deep = folder / ("long" * 30)
        deep.mkdir()
        (deep / f"{'name' * 30}.jpg").write_bytes(image)
        (folder / "plain.jpg").write_bytes(image)
        os.link(folder / "plain.jpg", folder / "same.jpg")
        (folder / "soft.jpg").symlink_to("plain.jpg")
        os.mkfifo(folder / "pipe.jpg")
        with (folder / "sparse.jpg").open("wb") as file:
            file.write(image)
            file.truncate(1 << 20)
        (folder / "é\udcff.jpg").write_bytes(image)
        (folder / "empty.jpg").touch()
        options = ["--sparse", f"--format={form}", "--sort=name", "--mtime=@0", "--owner=0"]
        options += ["--group=0", "--numeric-owner", "--blocking-factor=1"]
        options += ["--pax-option=delete=atime,delete=ctime"] if form == "pax" else []
        subprocess.run(
            ["tar", *options, "-C", name, "-cf", str(HERE / f"kinds-{form}.tar"), "."], check=True
        )


if __name__ == "__main__":
    main()
