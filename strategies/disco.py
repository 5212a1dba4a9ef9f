"""DISCO, server side: a subspace of LoRA for each kind of instructions.

Guo et al., "Federated Continual Instruction Tuning", ICCV 2025,
https://arxiv.org/abs/2503.12897, section 4. Symbols: a subspace k has the factors A_k
and B_k of each layer, and an identity token m_k, the mean embedding of its prompts.

- Dynamic knowledge organization: a client trains the subspace whose identity token is
  most like its own, or a new one. The server averages updates of one subspace alone.
- Subspace selective activation: for a prompt x the weight of a layer is ``W0 + sum_k
  w_k(x) B_k A_k``, with ``w = softmax(cos(x, m) / temperature)``.

In the paper a text encoder (CLIP) embeds prompts. Here the language model's own table
does, without the words of its template of a chat, which all prompts have. In the
released code the prompts of a batch share one w; here each prompt has its own.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.lorm import DOWN, UP


class DiscoParams(Params):
    """Hyper-parameters of DISCO; the rank is the model's."""

    similarity: float = Field(0.9, gt=0, le=1)
    """Least cosine of two identity tokens of one subspace, in (0, 1]."""
    subspaces: int = Field(8, ge=1)
    """Largest number of subspaces; after that a client joins the nearest."""
    temperature: float = Field(0.05, gt=0)
    """Temperature of the softmax by which a prompt chooses subspaces, above 0."""


ALGORITHM = Algorithm(
    name="disco",
    server="strategies.disco:Disco",
    client="clients.disco:Disco",
    params_type=DiscoParams,
    summary="a language model with a subspace of LoRA for each kind of instructions",
    paper="Guo et al., ICCV 2025",
    defaults={
        "data.datasets": "instructions:stdlib-docs",
        "scenario.name": "domains",
    },
    models=("causal-lm",),
    token_labels=True,
)


# ---- the equations


def cosines(one: Array, others: Array) -> Array:
    """Compute the cosines of vectors (N, D) and (K, D), shape (N, K); 0 for zeros."""
    lengths = [np.linalg.norm(v, axis=1, keepdims=True) for v in (one, others)]
    first, second = (
        v / np.where(length > 0, length, 1.0)
        for v, length in zip((one, others), lengths, strict=True)
    )
    product: Array = first @ second.T
    return product


def nearest(identity: Array, others: Array, params: DiscoParams) -> int:
    """Find the subspace of an identity token (D,) among ``others``, shape (K, D).

    Returns:
        its number; K for a new one.
    """
    count = len(others)
    if not count:
        return 0
    similar = cosines(identity[None], others)[0]
    best = int(similar.argmax())
    if similar[best] >= params.similarity or count >= params.subspaces:
        return best
    return count


# ---- the groups that travel

SUBSPACE: Final = "subspace"
"""The kind of the groups with the factors of a subspace."""
FRESH: Final = "fresh"
"""The group with the factors of which a new subspace starts."""
IDENTITY: Final = "identity"
"""The group with ``token``, float32, (D,): the mean embedding of a client's prompts.
With the server's number it is the kind of the groups of subspaces. These have
``count``, the prompts of which it is the mean, float64."""


def numbers(payload: Payload) -> range:
    """Count the subspaces of a state or a message, from 0."""
    return range(sum(group.startswith(f"{SUBSPACE}/") for group in payload))


def identities(payload: Payload) -> Array:
    """Collect the identity tokens of all subspaces, shape (K, D)."""
    tokens = [np.asarray(payload[f"{IDENTITY}/{k}"]["token"]) for k in numbers(payload)]
    return np.stack(tokens) if tokens else np.zeros((0, 0), np.float32)


class Disco(ServerStrategy[DiscoParams]):
    """A strategy that keeps subspaces, and sends all of them.

    So a client chooses by its own data, and the server keeps nothing of a client.

    State: ``fresh``; ``subspace/K`` and ``identity/K`` of each subspace.
    """

    groups = {}
    predicts = (SUBSPACE, IDENTITY)
    needs_rounds = True

    @override
    def init(self, model: Arrays) -> Payload:
        if not all(name.endswith((DOWN, UP)) for name in model):
            expected = "causal-lm, of which LoRA alone is trained"
            raise config_error("model.name", "another network", expected)
        return {FRESH: model}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return state

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        token = np.zeros(self.context.model.features, np.float32)
        expected = {"base": state[FRESH], IDENTITY: {"token": token}}
        same_tensors(update.payload, expected)
        if not np.asarray(update.payload[IDENTITY]["token"]).any():
            raise WireError(f"{IDENTITY}/token: got zeros, expected some other number")

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        tokens = [*identities(state)]
        sharers: dict[int, dict[int, Update]] = {}
        for client, update in updates.items():
            if not update.num_examples:
                continue
            token = np.asarray(update.payload[IDENTITY]["token"])
            number = nearest(token, np.array(tokens), self.params)
            if number == len(tokens):
                tokens.append(token)
            sharers.setdefault(number, {})[client] = update
        new = {**state}
        for number, members in sharers.items():
            mean = self.aggregation.combine_groups(members, {"base": state[FRESH]})
            new[f"{SUBSPACE}/{number}"] = mean["base"]
            old = state.get(f"{IDENTITY}/{number}", {"count": np.zeros(())})
            new[f"{IDENTITY}/{number}"] = _with_prompts(old, members.values())
        return new


def _with_prompts(identity: Arrays, members: Iterable[Update]) -> Arrays:
    """Add the prompts of updates to the mean that is an identity token."""
    count = float(np.asarray(identity["count"]))
    total = count * np.asarray(identity.get("token", 0.0), np.float64)
    for update in members:
        token = np.asarray(update.payload[IDENTITY]["token"], np.float64)
        total = total + update.num_examples * token
        count += update.num_examples
    return {"token": (total / count).astype(np.float32), "count": np.asarray(count)}
