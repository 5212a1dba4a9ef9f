"""FedProx with Stable SGD: the proximal term, and a rate that falls by tasks."""

from clients.fedprox import FedProx
from clients.stable_sgd import StableSgd
from strategies.fedprox_ssgd import FedProxSsgdParams


class FedProxSsgd(FedProx[FedProxSsgdParams], StableSgd[FedProxSsgdParams]):
    """A learner that trains with both methods; see `FedProx` and `StableSgd`."""
