"""WebDataset: its ShardWriter, with the original bytes."""

from importlib.metadata import version
from pathlib import Path

from webdataset import ShardWriter
from writing import Writing, serve_writing


def _write(work: Writing) -> None:
    work.out.mkdir()
    with ShardWriter(str(work.out / "train-%06d.tar"), verbose=0) as writer:
        for number, (path, label) in enumerate(zip(work.paths, work.labels, strict=True)):
            jpeg = Path(path).read_bytes()
            writer.write({"__key__": f"{number:07}", "jpg": jpeg, "cls": label})


if __name__ == "__main__":
    serve_writing(_write, versions={"webdataset": version("webdataset")})
