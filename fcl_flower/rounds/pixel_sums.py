"""Mean and deviation of all clients' pixels, agreed on before the first round.

A client adds up the pixels of its first task, and their squares, channel by channel.
Only the sums travel. All clients standardize by the mean and the deviation.
"""

from collections.abc import Sequence
from logging import INFO

import numpy as np
from torch import Tensor

from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import RoundError, WireError
from fcl_flower.core.log import log
from fcl_flower.core.schedule import Schedule
from fcl_flower.core.types import Array, Assignment, TaskStage
from fcl_flower.rounds import messages
from fcl_flower.rounds.clients import Asker
from fcl_flower.rounds.transport import QUERY, Content

SUMS = "pixels"
KIND = f"{QUERY}.{SUMS}"
_FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
_ROUNDING = 1e-9


def agree_on_pixels(asker: Asker, spec: RunSpec, schedule: Schedule) -> RunSpec:
    """Ask clients for their sums; return the run with the mean and the deviation.

    Only clients that take part from the start and have data for the first task are
    asked.

    Raises:
        RoundError: some of them are not connected, or have not answered.
    """
    joined = schedule.joined or (0,) * schedule.clients
    asked = [
        client
        for client in range(schedule.clients)
        if not joined[client] and (client, 0) not in schedule.sat_out
    ]
    here = [client for client in asked if client in asker.registry.clients]
    request = messages.MessageEncoder().encode_request({}, Assignment(_FIRST))
    channels = spec.input_shape[0]
    sums, _ = asker.ask(
        KIND,
        dict.fromkeys(here, request),
        lambda _, content: read_sums(content, channels),
    )
    if missing := sorted({*asked} - sums.keys()):
        raise RoundError(
            f"data.normalise: got no sums of pixels from clients {missing}, expected "
            "them of all: let them connect, or give mean and deviation as numbers"
        )
    text = statistics([*sums.values()])
    log(INFO, "pixels: mean and deviation of all clients are %s", text)
    agreed = spec.with_settings(**{"data.normalise": text})
    return agreed.model_copy(update={"revision": spec.revision + 1})


def pixel_sums(pixels: Tensor) -> Content:
    """Add up pixels between 0 and 1, shape (N, C, H, W), for a client's reply.

    The sums are float64, shape (3, C): number, sum and sum of squares.
    """
    rows = pixels.double().transpose(0, 1).flatten(1)
    counts = rows.new_full((len(rows),), rows.shape[1])
    sums = np.stack([part.cpu() for part in (counts, rows.sum(1), (rows**2).sum(1))])
    return messages.MessageEncoder().payload({SUMS: {"sums": sums}})


def read_sums(content: Content, channels: int) -> Array:
    """Read a client's sums, shape (3, C).

    Raises:
        WireError: no pixels can have these sums.
    """
    payload = messages.decode_payload(content)
    sums = np.asarray(payload.get(SUMS, {}).get("sums", ()))
    if sums.shape != (3, channels) or not np.isfinite(sums).all():
        raise WireError(f"{SUMS}/sums: expected shape (3, {channels}), got other data")
    count, total, squares = sums
    slack = _ROUNDING * count
    if not (
        ((count >= 0) & (count <= messages.MAX_EXAMPLES * 2**20)).all()
        and ((total >= 0) & (squares <= total + slack) & (total <= count + slack)).all()
        and (total**2 <= count * (squares + slack)).all()
    ):
        raise WireError(f"{SUMS}/sums: expected those of pixels between 0 and 1")
    return sums


def statistics(sums: Sequence[Array]) -> str:
    """Write mean and deviation of all pixels as the setting ``data.normalise`` has it.

    A channel in which all pixels are the same has the deviation 1.

    Args:
        sums: of each client, as `pixel_sums` makes them; one client at least.
    """
    count, total, squares = np.sum(sums, 0)
    mean = total / np.maximum(count, 1)
    variance = squares / np.maximum(count, 1) - mean**2
    deviation = np.sqrt(np.where(variance > _ROUNDING, variance, 1.0))
    return "/".join(
        ",".join(f"{value:.6g}" for value in part) for part in (mean, deviation)
    )
