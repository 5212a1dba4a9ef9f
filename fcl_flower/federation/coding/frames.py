"""Bytes compressed by Zstandard, and opened without trusting what they claim."""

import zstandard

from fcl_flower.core.errors import WireError

LEVEL = 3
"""Higher ones take several times the time, and a few per cent off the bytes."""


def compress(data: bytes, itemsize: int) -> bytes:
    """Return one frame; it says how long ``data`` is.

    Args:
        data: values first, of ``itemsize`` bytes each. The first bytes of all values
            stand together in the frame, then the second ones, and so on: signs and
            exponents of floats resemble each other, their last bits nothing.
        itemsize: at least 1.
    """
    frame = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=len(data))
    # A block has one code for all its bytes: each place gets blocks of its own.
    made = [
        frame.compress(plane) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for plane in _planes(data, itemsize)
    ]
    return b"".join(made) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


def decompress(frame: bytes, itemsize: int, limit: int) -> bytes:
    """Return what `compress` was given; nothing is allocated for too large a claim.

    Args:
        frame: from a peer.
        itemsize: as for `compress`.
        limit: how many bytes there may be.

    Raises:
        WireError: the frame is damaged, is followed by something, or claims more.
    """
    try:
        # Frames to be skipped may claim gigabytes without being asked for their size.
        if not frame.startswith(zstandard.FRAME_HEADER):
            raise WireError("a compressed tensor is damaged: no frame of Zstandard")
        claimed = zstandard.frame_content_size(frame)
        # Without a size the claim would be open, and -1 is what such a frame says.
        if not 0 <= claimed <= limit:
            raise WireError(
                f"a compressed tensor claims {claimed} bytes, of {limit} that it may"
            )
        opened = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"a compressed tensor is damaged: {error}") from error
    if len(opened) != claimed:
        raise WireError(f"a compressed tensor has {len(opened)} bytes, not {claimed}")
    return _whole(opened, itemsize)


def _planes(data: bytes, itemsize: int) -> list[bytes]:
    """Return the bytes of each value taken apart; what is left over is the last."""
    end = len(data) // itemsize * itemsize
    planes = [data[place:end:itemsize] for place in range(itemsize)]
    return [plane for plane in (*planes, data[end:]) if plane]


def _whole(planes: bytes, itemsize: int) -> bytes:
    """Return what `_planes` took apart."""
    if itemsize == 1:
        return planes
    count = len(planes) // itemsize
    whole = bytearray(planes)
    for i in range(itemsize):
        whole[i : count * itemsize : itemsize] = planes[i * count : (i + 1) * count]
    return bytes(whole)
