"""Concept Matching: declaration and hyper-parameters.

Jiang, Sen and Borcea, 2025, "Federated Continual Learning Using Concept Matching".
"""

from typing import Literal, TypeAlias

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts

# These types are here since the module of their code takes a second to import.
ClusteringMethod: TypeAlias = Literal[
    "k-means", "agglomerative", "birch", "dbscan", "optics"
]
Metric: TypeAlias = Literal["manhattan", "euclidean", "chebyshev"]
MatchingRule: TypeAlias = Literal["literal", "relaxed", "assignment"]


class ConceptMatchingParams(Params):
    """Hyper-parameters of Concept Matching."""

    counts = (
        Counts("strategy.neighbourhood", "strategy.clustering", ("dbscan",)),
        Counts("strategy.slack", "strategy.matching", ("relaxed", "assignment")),
    )

    concepts: int = Field(5, ge=1)
    """The number K of concept models, at least 1. The paper finds too many better than
    too few."""
    clustering: ClusteringMethod = "k-means"
    """The method that groups the clients' models."""
    steps: Literal["direction", "length"] = "direction"
    """The part of a client's step that the clustering sees. A step is the difference of
    the client's model and the concept model from which it probably started. With
    ``direction``, all steps are scaled to one length; with ``length``, as printed, they
    keep theirs."""
    distance: Metric = "manhattan"
    """The metric between cluster models and concept models."""
    matching: MatchingRule = "assignment"
    """The rule by which cluster models replace concept models: ``literal`` (algorithm
    1), ``relaxed`` or ``assignment``."""
    slack: float = Field(4.0, ge=1)
    """The longest move of a concept model in one round, in units of its last step, at
    least 1; ``literal`` does not use it. A cluster of one client moves further than the
    mean of nine, by up to a factor of three."""
    initial: Literal["common", "independent"] = "common"
    """The start of the concept models. With ``common``, all start as the same network.
    The clusters of the first round then differ by their data only, and each takes a
    model of its own. With ``independent``, each starts as another random network: the
    first one with its weights shuffled within each tensor."""
    aggregation: Literal["mean", "median"] = "mean"
    """The merge of a cluster's models: their ``mean``, weighted by examples (unweighted
    without examples), or the ``median`` of each weight."""
    outlier: float = Field(20.0, gt=1)
    """The largest distance of a client's model from the nearest concept model, above 1.
    Its unit is the median step of the round, or the longest step that a concept model
    ever made. A model further off is noise, and lies in the centre of the map."""
    separation: float = Field(0.1, ge=-1, le=1)
    """The least mean silhouette for more than one cluster, in [-1, 1]."""
    subdivision: float = Field(0.4, ge=0)
    """The least silhouette for dividing a cluster again, in units of that of the
    clusters; at least 0. On five concepts of images it was at least 0.47 where a
    cluster held two concepts, and at most 0.33 where it held one. On other data the two
    overlap."""
    neighbourhood: float = Field(3.0, gt=0)
    """The largest radius of DBSCAN, in units of the median distance of a model to its
    nearest neighbour; above 0."""
    exact_clients: int = Field(400, ge=2)
    """The number of clients in a round above which distances are estimated from
    sketches; at least 2."""
    sketch: int = Field(4096, ge=16)
    """The number of values in a sketch, at least 16."""
    subset: int = Field(64, ge=1)
    """The number of examples on which a client compares the concept models, at least 1;
    the size of d_n. A client that has fewer takes all of its examples."""
    choice: Literal["loss", "entropy", "inputs"] = "loss"
    """The rule by which a client chooses a concept model to predict with. By ``loss``,
    it uses a few labelled examples (equation 6). The other two rules need no labels. By
    ``entropy``, it compares the entropies of the predictions. By ``inputs``, it
    compares the inputs with those of each model's training, and takes the first model
    if it trained none. The model to train is always chosen by the loss."""


ALGORITHM = Algorithm(
    name="concept-matching",
    server="strategies.concept_matching.server:ConceptMatching",
    client="clients.concept_matching:ConceptMatching",
    params_type=ConceptMatchingParams,
    summary="a model for each hidden concept; the server clusters what comes back",
    paper="Jiang et al., 2025",
    defaults={"scenario.name": "concepts"},
)
