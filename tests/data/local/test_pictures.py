"""Pictures as cameras, scanners and painting programs write them, for all who read."""

import io

import numpy as np
import pytest
from PIL import Image

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import ImageDataset
from fcl_flower.data.local.formats import read_raw, read_samples
from fcl_flower.data.pictures import PICTURES, pixels, read_picture

BASE = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40

# What is seen of a picture whose pixels lie as an EXIF orientation says: the table of
# the standard, row 0 and column 0 of the file being at these sides of what is seen.
STORED = {
    1: lambda seen: seen,  # top, left
    2: lambda seen: seen[:, ::-1],  # top, right
    3: lambda seen: seen[::-1, ::-1],  # bottom, right
    4: lambda seen: seen[::-1],  # bottom, left
    5: lambda seen: seen.T,  # left, top
    6: lambda seen: seen[:, ::-1].T,  # right, top
    7: lambda seen: seen[::-1, ::-1].T,  # right, bottom
    8: lambda seen: seen[::-1].T,  # left, bottom
}


def saved(array, form, **more):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **more)
    file.seek(0)
    return Image.open(file)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_a_picture_is_put_upright(form, orientation):
    stored = np.ascontiguousarray(STORED[orientation](BASE))
    exif = Image.Exif()
    exif[0x0112] = orientation
    more = {"lossless": True} if form == "WEBP" else {}
    picture = saved(np.stack([stored] * 3, -1), form, exif=exif, **more)
    np.testing.assert_array_equal(pixels(picture, "L", None), BASE)


def test_what_is_transparent_is_seen_on_white():
    hidden = np.array([[[9, 0, 0, 0], [9, 0, 0, 255]]], np.uint8)
    assert pixels(saved(hidden, "PNG"), "RGB", None).tolist() == [
        [[255] * 3, [9, 0, 0]]
    ]
    grey = np.array([[[9, 0], [9, 255]]], np.uint8)
    assert pixels(saved(grey, "PNG"), "L", None).tolist() == [[255, 9]]
    palette = Image.fromarray(BASE).convert("P")
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=int(np.asarray(palette)[0, 1]))
    file.seek(0)
    assert pixels(Image.open(file), "L", None)[0].tolist() == [0, 255, 80]


DEEP = np.array([[0, 1000], [30000, 65535]], np.uint16)


def test_white_may_be_0_in_pictures_of_more_than_8_bits():
    for stored, white in ((DEEP, 65535), (DEEP // 65535, 1)):
        values = stored if white > 1 else stored.astype(np.float32)
        picture = saved(values, "TIFF", tiffinfo={262: 0})
        found = pixels(picture, "L", None)
        np.testing.assert_allclose(found, 1 - values / white, atol=1e-6)


def test_a_transparent_grey_of_16_bits_is_seen_on_white():
    found = pixels(saved(DEEP, "PNG", transparency=1000), "L", None)
    wanted = np.where(DEEP == 1000, 1, DEEP / 65535)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_picture_without_a_hole_has_its_pixels():
    rng = np.random.default_rng(0)
    opaque = rng.integers(0, 256, (50, 50, 4), np.uint8)
    opaque[..., 3] = 255
    np.testing.assert_array_equal(
        pixels(saved(opaque, "PNG"), "RGB", None), opaque[..., :3]
    )


@pytest.mark.parametrize(
    ("x", "form", "white"),
    [
        (np.array([[0, 1000], [65535, 300]], np.uint16), "PNG", 65535),
        (np.array([[0, 1000], [65535, 300]], np.uint16), "TIFF", 65535),
        (np.array([[0, 0.25], [1, 0.3]], np.float32), "TIFF", 1),
    ],
)
def test_more_than_8_bits_are_kept(x, form, white):
    picture = saved(x, form)
    np.testing.assert_allclose(pixels(picture, "L", None), x / white, rtol=1e-6)
    colour = pixels(picture, "RGB", None)
    assert colour.dtype == np.float32
    np.testing.assert_allclose(colour, np.stack([x / white] * 3, -1), rtol=1e-6)
    assert pixels(picture, "RGB", (7, 5)).shape == (5, 7, 3)


def signed_tiff(values):
    """Return a TIFF file of signed numbers of 16 bits, as scanners of bodies write."""
    import struct

    data = np.asarray(values, "<i2")
    height, width = data.shape
    tags = {256: width, 257: height, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1}
    tags |= {278: height, 279: data.nbytes, 339: 2}
    entries = [struct.pack("<HHII", tag, 4, 1, n) for tag, n in sorted(tags.items())]
    count = struct.pack("<H", len(entries))
    end = b"".join(entries) + struct.pack("<I", 0)
    header = b"II*\0" + struct.pack("<I", 8 + data.nbytes)
    return header + data.tobytes() + count + end


def test_signed_numbers_have_no_black_below_0(tmp_path):
    file = tmp_path / "scan.tif"
    file.write_bytes(signed_tiff([[0, 1000], [32767, 3]]))
    found = read_picture(file, "L", None)
    np.testing.assert_allclose(found, np.array([[0, 1000], [32767, 3]]) / 32767)
    file.write_bytes(signed_tiff([[-1000, 1000]]))
    with pytest.raises(ConfigError, match=r"scan\.tif .* from -1000 to 1000, .* 32767"):
        read_picture(file, "L", None)


def test_a_stack_of_pages_is_no_picture(tmp_path):
    pages = [Image.fromarray(BASE + n) for n in range(3)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(ConfigError, match=r"stack\.tif .*it has 3 pages.* single"):
        read_picture(tmp_path / "stack.tif", "L", None)


def test_what_is_learned_is_what_is_predicted(tmp_path):
    x = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    for number, name in enumerate(("cat", "dog")):
        place = tmp_path / "train" / name
        place.mkdir(parents=True)
        for end in PICTURES:
            picture = Image.fromarray(x + number)
            picture.save(place / f"of{end}", **{"quality": 100} if "j" in end else {})
        Image.fromarray(np.uint16(x) * 257).save(place / "deep.png")
        for left in ("Thumbs.db", "desktop.ini", ".DS_Store", "._of.png"):
            (place / left).write_bytes(b"nothing")
    for left in ("Thumbs.db", "Desktop.ini", ".DS_Store"):
        (tmp_path / "train" / left).write_bytes(b"nothing")
    learned = read_samples(tmp_path / "train", ImageDataset, (1, 4, 4))
    asked = read_raw(tmp_path / "train", ImageDataset, (1, 4, 4), ())
    assert len(learned.x) == len(asked.x) == 2 * (len(PICTURES) + 1)
    # One of 16 bits makes floating point of all, with the same pixels.
    assert learned.x.dtype == np.float32
    for seen, wanted in zip(asked.x, learned.x, strict=True):
        unit = 255 if seen.dtype == np.uint8 else 1
        np.testing.assert_allclose(seen / unit, wanted, rtol=1e-6)
    np.testing.assert_allclose(learned.x[0] * 255, x, atol=1e-4)
