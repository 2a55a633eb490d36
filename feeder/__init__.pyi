from feeder.choose.make import select as select
from feeder.pack.samples import PackedSamples as PackedSamples
from feeder.pack.samples import pack_samples as pack_samples

__all__ = ["PackedSamples", "__version__", "pack_samples", "select"]

__version__: str
