"""Files of pictures, which are decoded to pixels as people see them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, Fault, require_extra
from fcl_flower.data.arrays import Images, to_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
"""The endings of files of pictures."""

Mode: TypeAlias = Literal["L", "RGB"]
"""Pillow's modes of grey and of colour pictures."""

_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes with at most eight bits a channel."""

_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""The transposition that puts a picture upright, by its EXIF orientation."""

_BITS = 258
"""The tag of a TIFF file that holds the bits of each channel."""
_PHOTOMETRIC = 262
"""The tag of a TIFF file that is 0 where 0 is white."""
_DEEP_WHITE = 65535
"""The grey of 16 bits by which a PNG file names what is transparent, if it is white."""


def read_picture(file: Path, mode: Mode, size: tuple[int, int] | None) -> Images:
    """Read a picture from a file, and decode it as `pixels` does.

    Raises:
        ConfigError: the file cannot be read as a single picture.
    """
    with require_extra("images", str(file)):
        from PIL import Image
    try:
        with Image.open(file) as image:
            return pixels(image, mode, size)
    # A damaged file makes Pillow raise many unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{file} cannot be read ({error}), expected a single picture as "
            f"{', '.join(PICTURES)}",
            Fault.UNREADABLE,
        ) from error


def pixels(image: "Image", mode: Mode, size: tuple[int, int] | None) -> Images:
    """Decode a picture: put it upright, on a white background where transparent.

    Args:
        image: picture that Pillow has opened.
        mode: mode of the result, grey or colour.
        size: width and height for bilinear scaling; None keeps the picture's size.

    Returns:
        pixels of shape (H, W) or (H, W, 3), uint8; float32 in [0, 1] if the picture has
        more than 8 bits a channel.

    Raises:
        ValueError: the picture has several pages, or pixels of another kind.
        ConfigError: the picture's numbers have no known black or white.
    """
    from PIL import Image

    # The pages of a phone's picture are smaller copies and maps of depth.
    if image.format != "MPO" and (pages := getattr(image, "n_frames", 1)) > 1:
        raise ValueError(f"it has {pages} pages")
    # Pillow turns a TIFF file when it loads it, so the orientation is read later.
    image.load()
    turn, deep = _TURNS.get(_orientation(image)), _deep_pixels(image)
    if deep is not None:
        seen = _as_seen(to_pixels(deep, "pixels").astype(np.float32), image)
        image = Image.fromarray(seen)
    elif image.mode not in _MODES:
        raise ValueError(f"its pixels are {image.mode}")
    else:
        if "A" in image.getbands() or "transparency" in image.info:
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA"))
        image = image.convert(mode)
    if turn is not None:
        image = image.transpose(Image.Transpose[turn])
    if size is not None:
        image = image.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(image)
    grey = mode == "RGB" and array.ndim == 2
    return array[..., None].repeat(3, -1) if grey else array


def upright(image: "Image") -> tuple[int, int]:
    """Find width and height of a picture after `pixels` has put it upright."""
    width, height = image.size
    return (height, width) if _orientation(image) > 4 else (width, height)


def _orientation(image: "Image") -> int:
    orientation = image.getexif().get(_ORIENTATION, 1)
    return orientation if orientation in _TURNS else 1


def _as_seen(grey: npt.NDArray[np.float32], image: "Image") -> npt.NDArray[np.float32]:
    """Turn deep grey values in [0, 1] to what is seen, as Pillow does with 8 bits."""
    if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:
        return 1 - grey
    hidden = image.info.get("transparency")
    if image.format == "PNG" and isinstance(hidden, int):
        return np.where(np.rint(grey * _DEEP_WHITE) == hidden, np.float32(1), grey)
    return grey


def _deep_pixels(image: "Image") -> Any:  # noqa: ANN401 - an array, or None
    """Return the grey values of a picture with more than 8 bits, None for others."""
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16)
    if image.mode == "F":
        return np.asarray(image)
    if image.mode != "I":
        return None
    # Mode I holds 16 bits of PNG files (in some versions of Pillow), or signed 16 bits
    # of TIFF files.
    if image.format == "PNG":
        return np.asarray(image).astype(np.uint16)
    if getattr(image, "tag_v2", {}).get(_BITS) == (16,):
        return np.asarray(image).astype(np.int16)
    raise ValueError("its pixels have 32 bits")
