"""The names of the decoders of samples, which give the same bytes.

    own         ``feeder.jpeg.decode.decode_window`` where it can, else as below
    turbojpeg   TurboJPEG on a JPEG that is made of the tiles: the reference

Invariant: importing this module loads no library, so configuration and messages can name decoders.
"""

from typing import Final, Literal

Decoder = Literal["own", "turbojpeg"]

DECODERS: Final[tuple[Decoder, ...]] = ("own", "turbojpeg")
