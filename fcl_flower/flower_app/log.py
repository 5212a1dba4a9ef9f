"""Let our log go where Flower's goes, in a process that Flower has started."""

import logging

from fcl_flower.core.log import LOGGER


def join_flower() -> None:
    """Give our log the handlers of Flower's log."""
    if not LOGGER.handlers:
        LOGGER.handlers = list(logging.getLogger("flwr").handlers)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
