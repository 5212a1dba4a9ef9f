"""Concept Matching: declaration and hyper-parameters.

Jiang, Sen and Borcea, 2025, "Federated Continual Learning Using Concept Matching".
"""

from typing import Literal, TypeAlias

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm

# Here, not beside their code, which takes a second to import.
ClusteringMethod: TypeAlias = Literal[
    "k-means", "agglomerative", "birch", "dbscan", "optics"
]
Metric: TypeAlias = Literal["manhattan", "euclidean", "chebyshev"]
MatchingRule: TypeAlias = Literal["literal", "relaxed", "assignment"]


class ConceptMatchingParams(Params):
    """Hyper-parameters of Concept Matching."""

    concepts: int = Field(5, ge=1)
    """K, how many concept models there are; at least 1. The paper finds too many better
    than too few."""
    clustering: ClusteringMethod = "k-means"
    """How the clients' models are grouped."""
    steps: Literal["direction", "length"] = "direction"
    """What the clustering sees of a client's step, the difference of its model and the
    concept model that it probably started from: its ``direction``, since all steps are
    brought to one length, or the ``length`` too, as printed."""
    distance: Metric = "manhattan"
    """Metric between cluster models and concept models."""
    matching: MatchingRule = "assignment"
    """Which concept model a cluster model replaces: ``literal`` (algorithm 1),
    ``relaxed`` or ``assignment``."""
    slack: float = Field(4.0, ge=1)
    """How many times its last step a concept model may move in one round, at least 1;
    not used by ``literal``. A cluster of one client moves further than the mean of
    nine, by up to a factor of three."""
    initial: Literal["common", "independent"] = "common"
    """``common``: all concept models start as the same network, so that the clusters of
    the first round differ by their data only, and each takes a model of its own;
    ``independent``: each as another random network, the first one with its weights
    shuffled within each tensor."""
    aggregation: Literal["mean", "median"] = "mean"
    """``mean`` of a cluster's models, weighted by examples (not weighted where there
    are none), or ``median`` of each weight."""
    outlier: float = Field(20.0, gt=1)
    """How many times the median step of the round, or the longest step that a concept
    model ever made, a client's model may lie away from the nearest concept model, above
    1; a model further off is noise, and lies in the centre of the map."""
    separation: float = Field(0.1, ge=-1, le=1)
    """Least mean silhouette for more than one cluster, in [-1, 1]."""
    subdivision: float = Field(0.4, ge=0)
    """Least silhouette for dividing a cluster again, in units of that of the clusters;
    at least 0. Measured on five concepts of images: at least 0.47 where a cluster held
    two, at most 0.33 where it held one; on other data the two overlap."""
    neighbourhood: float = Field(3.0, gt=0)
    """DBSCAN's largest radius, in units of the median distance of a model to its
    nearest neighbour; above 0."""
    exact_clients: int = Field(400, ge=2)
    """With more clients in a round their distances are estimated from sketches; at
    least 2."""
    sketch: int = Field(4096, ge=16)
    """Numbers in a sketch, at least 16."""
    subset: int = Field(64, ge=1)
    """Examples on which a client compares the concept models, at least 1; the size of
    d_n. A client that has fewer takes them all."""
    choice: Literal["loss", "entropy", "inputs"] = "loss"
    """How a client chooses a concept model in order to predict: by the ``loss`` on a
    few labelled examples (equation 6); or without labels, by the ``entropy`` of the
    predictions, or by how well ``inputs`` fit those that it trained each model on (the
    first model, if it trained none). It always chooses by the loss what to train."""


ALGORITHM = Algorithm(
    name="concept-matching",
    server="strategies.concept_matching.server:ConceptMatching",
    client="clients.concept_matching:ConceptMatching",
    params_type=ConceptMatchingParams,
    summary="a model for each hidden concept; the server clusters what comes back",
    paper="Jiang et al., 2025",
    defaults={"scenario.name": "concepts"},
)
