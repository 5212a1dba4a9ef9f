"""Images in folders: one folder a class."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, extra
from fcl_flower.data.local.samples import FileSamples, checked_label, coded

SUFFIXES = (".png", ".jpg", ".jpeg")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
"""Eight bits a channel: what goes beyond would be cut off, not scaled."""


def read_pictures(folder: Path, input_shape: tuple[int, ...]) -> FileSamples:
    """Return images of any size in the size of the model, scaled bilinearly.

    Args:
        folder: holds folders named by label, with PNG or JPEG files in them. Names that
            begin with a dot are left alone.
        input_shape: (C, H, W) of the model: grey for one channel, otherwise RGB.

    Raises:
        ConfigError: Pillow is missing, or the folder is not as described; names the
            file.
    """
    channels, *size = input_shape
    files = [(label, file) for label in _visible(folder) for file in _images_in(label)]
    if not files:
        raise ConfigError(
            f"{folder} is empty, expected folders of images, named by label"
        )
    mode = "L" if channels == 1 else "RGB"
    x = np.empty((len(files), *size, *[3] * (mode == "RGB")), np.uint8)
    for image, (_, file) in zip(x, files, strict=True):
        image[:] = _pixels(file, mode, (size[1], size[0]))
    x.setflags(write=False)
    labels = [checked_label(label.name, str(label)) for label, _ in files]
    names = [f"{label.name}/{file.name}" for label, file in files]
    return FileSamples(str(folder), x, *coded(labels), "image", names)


def _images_in(label: Path) -> list[Path]:
    if not label.is_dir():
        raise ConfigError(f"{label} is a file, expected a folder named by a label")
    files = _visible(label)
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"{file} is no image, expected {', '.join(SUFFIXES)}")
    return files


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _pixels(file: Path, mode: str, size: tuple[int, int]) -> npt.NDArray[Any]:
    """Return one image, shape (H, W) or (H, W, 3)."""
    with extra("images", str(file)):
        from PIL import Image
    try:
        with Image.open(file) as image:
            if image.mode not in _MODES:
                raise ValueError(f"its pixels are {image.mode}")
            pixels = image.convert(mode).resize(size, Image.Resampling.BILINEAR)
    # A damaged file makes Pillow raise many unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{file} cannot be read ({error}), expected an image of 8 bits a channel"
        ) from error
    return np.asarray(pixels)
