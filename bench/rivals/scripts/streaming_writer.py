"""MosaicML Streaming: its MDSWriter, with the original bytes."""

from importlib.metadata import version
from pathlib import Path

from streaming import MDSWriter
from writing import Writing, serve_writing


def _write(work: Writing) -> None:
    columns = {"jpeg": "bytes", "label": "int"}
    with MDSWriter(out=str(work.out), columns=columns) as writer:
        for path, label in zip(work.paths, work.labels, strict=True):
            writer.write({"jpeg": Path(path).read_bytes(), "label": label})


if __name__ == "__main__":
    serve_writing(_write, versions={"mosaicml-streaming": version("mosaicml-streaming")})
