"""Writers of formats that keep the original bytes: WebDataset's ShardWriter, Streaming's MDSWriter.

``torch_loader`` writes what it reads with the same functions.
"""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from protocol import Work, serve_writing

Images = Iterable[tuple[str, int]]  # path and label of each


def write_webdataset(images: Images, folder: Path, **options: Any) -> None:
    from webdataset import ShardWriter

    folder.mkdir()
    with ShardWriter(str(folder / "train-%06d.tar"), verbose=0, **options) as writer:
        for number, (path, label) in enumerate(images):
            jpeg = Path(path).read_bytes()
            writer.write({"__key__": f"{number:07}", "jpg": jpeg, "cls": label})


def write_mds(images: Images, folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"jpeg": "bytes", "label": "int"}) as writer:
        for path, label in images:
            writer.write({"jpeg": Path(path).read_bytes(), "label": label})


def _write(work: Work) -> dict[str, str]:
    images = zip(work.paths, work.labels, strict=True)
    if work.variant == "mds":
        write_mds(images, work.folder)
        return {"mosaicml-streaming": version("mosaicml-streaming")}
    write_webdataset(images, work.folder)
    return {"webdataset": version("webdataset")}


if __name__ == "__main__":
    serve_writing(_write)
