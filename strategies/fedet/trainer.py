"""FedET's Enhancer Select Module: it finds the group of classes of a sample.

Liu et al., IJCAI 2023, section 3.1. The module is built from public data before the
federation, and frozen. There are two kinds:

- scores that are linear in the frozen encoder's features, for each public class. A
  sample belongs to the group of the best score (arrays ``weights``, ``offsets``,
  ``groups``);
- a small network trained on the public samples (the arrays are its weights). It is a
  text-RCNN over the encoder's own word vectors, or a small EfficientNet for images.
"""

import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.models.adapters import Adapter
from fcl_flower.models.build import seeded
from fcl_flower.models.convolutional import EfficientNet
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import FEATURES
from fcl_flower.training.loop import Fit, Training, fit
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import arrays_of, load, to_torch

_WIDTH = 64
_CHUNK = 256


class FedEtTrainer(ServerTrainer):
    """A trainer of the router on the public data, which also distils on them."""

    def train_router(self, groups: Array, epochs: int) -> Arrays:
        """Train a small network to tell groups of classes apart.

        ``groups`` has the group of each public sample, int64, shape (N,).
        """
        x = self.public.x
        count = int(groups.max()) + 1
        network = RouterNetwork(self.model, count, self.seed).to(x.device)

        def objective(x: Tensor, y: Tensor) -> Tensor:
            network.train()
            return cross_entropy(network(x), y)

        job = Fit(
            parameters=dict(network.named_parameters()),
            objective=objective,
            examples=Examples(x, torch.tensor(groups, device=x.device)),
            training=Training(
                epochs,
                self.training.batch_size,
                1e-3,
                smallest_batch=self.training.smallest_batch,
            ),
            seed=derive(self.seed, "router"),
        )
        fit(job)
        return arrays_of(network.state_dict())


class TextRcnn(nn.Module):
    """A recurrent convolutional network for texts (Lai et al., AAAI 2015).

    It maps word vectors (batch, words, D) and a mask (batch, words) to logits of
    groups. Each word, with its left and right context, is projected to one width. The
    result is the largest value over the words.
    """

    def __init__(self, width: int, groups: int) -> None:
        """Build the network for word vectors of length ``width``."""
        super().__init__()
        self.context = nn.GRU(width, _WIDTH, batch_first=True, bidirectional=True)
        self.middle = nn.Linear(2 * _WIDTH + width, 2 * _WIDTH)
        self.out = nn.Linear(2 * _WIDTH, groups)

    @override
    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Compute logits, shape (batch, groups)."""
        packed = nn.utils.rnn.pack_padded_sequence(
            words,
            mask.sum(1).clamp(min=1).long().cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        around, _ = nn.utils.rnn.pad_packed_sequence(
            self.context(packed)[0], batch_first=True, total_length=words.shape[1]
        )
        latent = torch.tanh(self.middle(torch.cat([around, words], 2)))
        largest = latent.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)
        logits: Tensor = self.out(largest)
        return logits


class RouterNetwork(nn.Module):
    """A trained router, of which only the weights travel.

    The word vectors are those of the model's frozen encoder, which every client has.
    """

    def __init__(self, model: MultiHeadModel, groups: int, seed: int) -> None:
        """Build an untrained network for the inputs of ``model``, by a seed."""
        super().__init__()
        body = model.body
        # The list hides the encoder from PyTorch: it belongs to the model.
        self._encoder = [body] if isinstance(body, Transformer) and body.text else []
        with seeded(derive(seed, "router")):
            if self._encoder:
                self.network: nn.Module = TextRcnn(model.features, groups)
            elif model.input_shape == (3, 32, 32):
                features = EfficientNet()
                self.network = nn.Sequential(features, nn.Linear(256, groups))
            else:
                raise ContractError(
                    f"no router for inputs of shape {model.input_shape}: expected "
                    "texts of a pre-trained encoder, or images of shape (3, 32, 32)"
                )

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Compute logits, shape (batch, groups), of inputs as the model takes them."""
        for encoder in self._encoder:
            x = x[:, : int((x > 0).sum(1).max())]
            words = encoder.words(x).detach()
            by_words: Tensor = self.network(words, (x > 0).float())
            return by_words
        logits: Tensor = self.network(x)
        return logits


class Router:
    """A router that sends samples to groups, built from the server's arrays."""

    def __init__(self, model: MultiHeadModel, arrays: Arrays, groups: int) -> None:
        """Take up a router of either kind; it uses only frozen parts of the model."""
        self._model, self._arrays, self._groups = model, arrays, groups
        self._network: RouterNetwork | None = None
        if arrays and "offsets" not in arrays:
            self._network = RouterNetwork(model, groups, seed=0)
            load(self._network, arrays)
            self._network.eval()

    def module(self) -> nn.Module:
        """Build a module that computes `scores` by itself, from copies.

        Raises:
            ConfigError: the router reads each text word by word to its own end.
        """
        if self._network is not None:
            if isinstance(self._network.network, TextRcnn):
                raise config_error(
                    "strategy.router",
                    "network",
                    "discriminant or prototype to export a model of texts: a recurrent "
                    "network reads each text to its own end, which no fixed graph does",
                )
            return copy.deepcopy(self._network).requires_grad_(False)
        return LinearRouter(self._model, self._arrays, self._groups)

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Rate how well each group suits each sample, shape (N, groups)."""
        if not self._arrays or not len(x):
            return x.new_zeros(len(x), self._groups, dtype=torch.float32)
        if self._network is not None:
            network = self._network.to(x.device)
            chunks = range(0, len(x), _CHUNK)
            return torch.cat([network(x[at : at + _CHUNK]) for at in chunks])
        names = ("weights", "offsets", "groups")
        weights, offsets, groups = (
            to_torch(self._arrays[name], str(x.device)) for name in names
        )
        model = self._model
        embedded = FEATURES.features(model.body, x, model.embed, frozen=True)
        by_class = nn.functional.normalize(embedded) @ weights.T + offsets
        best = by_class.new_full((len(x), self._groups), -torch.inf)
        return best.scatter_reduce(1, groups.expand(len(x), -1), by_class, "amax")


class LinearRouter(nn.Module):
    """A module that computes linear scores of `Router`, or 0 without a router."""

    def __init__(self, model: MultiHeadModel, arrays: Arrays, groups: int) -> None:
        """Copy the body of ``model``, whose adapters do nothing here."""
        super().__init__()
        self._groups = groups
        self.body: nn.Module | None = None
        if not arrays:
            return
        self.body = copy.deepcopy(model.body).eval().requires_grad_(False)
        # Adapters are idle, as in `Transformer.embed`.
        for part in self.body.modules():
            if isinstance(part, Adapter):
                part.idle = True
        self.register_buffer("weights", to_torch(arrays["weights"]))
        self.register_buffer("offsets", to_torch(arrays["offsets"]))
        group_of_class = np.asarray(arrays["groups"]).reshape(-1)
        for group in range(groups):
            columns = torch.from_numpy(np.flatnonzero(group_of_class == group))
            self.register_buffer(f"columns_{group}", columns)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if self.body is None:
            return torch.zeros_like(x.flatten(1)[:, :1]).expand(-1, self._groups)
        # A transformer's `embed` takes chunks; an export needs one piece.
        whole = isinstance(self.body, Transformer)
        embed = self.body if whole else cast(Any, self.body).embed
        features = nn.functional.normalize(embed(x))
        weights, offsets = self.get_buffer("weights"), self.get_buffer("offsets")
        by_class = features @ weights.T + offsets
        none = torch.full_like(by_class[:, 0], -torch.inf)
        best = []
        for group in range(self._groups):
            columns = self.get_buffer(f"columns_{group}")
            best.append(by_class[:, columns].amax(1) if len(columns) else none)
        return torch.stack(best, 1)
