"""The one place where an algorithm is named."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final

from fcl_flower.algorithms.base import ClientLearner, Params, ServerStrategy
from fcl_flower.config.parsing import check_params, inline, settings
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, ContractError

DATASET: Final = "digits"
SILENT: Final = "strategies.local:NoOpStrategy"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Import paths of the two halves; nothing is imported until asked for.

    Attributes:
        strategy: dotted path of the server half, ``module:Class``.
        learner: dotted path of the client half, ``module:Class``.
        paper: where it comes from.
        summary: one line for ``fcl list``.
        counterpart: name of the algorithm that it becomes when nobody talks to anybody;
            empty where that is itself, run isolated.
        dataset: what it runs on where the user names nothing.
        scenario: likewise; empty for what suits the data.
        models: likewise, at most one for each kind of data; the others get the usual.
    """

    strategy: str
    learner: str
    paper: str
    summary: str
    counterpart: str = ""
    dataset: str = DATASET
    scenario: str = ""
    models: tuple[str, ...] = ()

    @property
    def federated(self) -> bool:
        """Return whether clients exchange anything, so that isolation would differ."""
        return self.strategy != SILENT

    def load_server(self) -> type[ServerStrategy[Any]]:
        """Import and check the server half."""
        found = _load(self.strategy)
        if not (isinstance(found, type) and issubclass(found, ServerStrategy)):
            raise ContractError(f"{self.strategy} is not a ServerStrategy")
        return found

    def load_client(self) -> type[ClientLearner[Any]]:
        """Import and check the client half."""
        found = _load(self.learner)
        if not (isinstance(found, type) and issubclass(found, ClientLearner)):
            raise ContractError(f"{self.learner} is not a ClientLearner")
        return found

    def keys(self) -> set[str]:
        """Return the names of the hyper-parameters of both halves."""
        halves = (self.load_server().params_type, self.load_client().params_type)
        return {key for half in halves for key in half.model_fields}

    def params(self, text: str) -> tuple[Params, Params]:
        """Return the hyper-parameters of the server and of the client half.

        Args:
            text: ``RunConfig.set``; a key that both halves know goes to both.

        Raises:
            ConfigError: no half knows a key, or a value is refused.
        """
        halves = (self.load_server().params_type, self.load_client().params_type)
        given = settings(text)
        known = self.keys()
        for key in given:
            if key not in known:
                expected = ", ".join(sorted(known)) or "none, it has no settings"
                raise ConfigError(f"set {key}: unknown key; expected one of {expected}")
        server, client = (
            check_params(
                half, {k: v for k, v in given.items() if k in half.model_fields}
            )
            for half in halves
        )
        return server, client


def _load(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name, None)


_BUILT_IN: Final[Mapping[str, Algorithm]] = MappingProxyType(
    {
        "fedavg": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.fedavg:Sgd",
            "McMahan et al., AISTATS 2017",
            "the example-weighted mean of the clients' models",
            counterpart="local",
        ),
        "fedprox": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.fedprox:FedProx",
            "Li et al., MLSys 2020",
            "FedAvg with a proximal term towards the global model",
        ),
        "ewc": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.ewc:Ewc",
            "Kirkpatrick et al., PNAS 2017",
            "FedAvg whose clients guard what old tasks need",
        ),
        "local": Algorithm(
            SILENT,
            "clients.local:Local",
            "-",
            "sequential training of one model, no federation",
        ),
        "stl": Algorithm(
            SILENT,
            "clients.stl:SingleTask",
            "-",
            "a fresh model for each task: the single-task bound",
        ),
        "fedweit": Algorithm(
            "strategies.fedweit.server:FedWeit",
            "clients.fedweit.client:FedWeit",
            "Yoon et al., ICML 2021",
            "gated base, sparse adapters, attention to other clients' adapters",
        ),
        "fedweit-match": Algorithm(
            "strategies.fedweit_match.server:FedWeitMatch",
            "clients.fedweit_match.client:FedWeitMatch",
            "ours, after FedWeIT",
            "FedWeIT whose new tasks start from a matching task of another client",
            counterpart="fedweit",
        ),
        "fedseit": Algorithm(
            "strategies.fedseit.server:FedSeit",
            "clients.fedseit.client:FedSeit",
            "Chaudhary et al., EMNLP Findings 2022",
            "FedWeIT for text whose foreign adapters are branches of their own",
            counterpart="fedweit",
            dataset="stdlib-docs",
        ),
        "finetune": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.fedavg:Sgd",
            "Yogatama et al., 2019",
            "FedAvg on the new classes only: what forgetting costs",
            dataset="stdlib-docs",
            scenario="class-incremental",
            models=("transformer",),
        ),
        "replay": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.replay.client:Replay",
            "de Masson d'Autume et al., NeurIPS 2019",
            "FedAvg whose clients train on a few samples of old tasks again",
            dataset="stdlib-docs",
            scenario="class-incremental",
            models=("transformer",),
        ),
        "replay-reg": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.replay.regularized:ReplayReg",
            "Huang et al., NAACL 2021",
            "replay whose features are held near those of the received model",
            dataset="stdlib-docs",
            scenario="class-incremental",
            models=("transformer",),
        ),
        "mtl": Algorithm(
            "strategies.fedavg:FedAvg",
            "clients.joint:Joint",
            "-",
            "FedAvg on all tasks at once: the bound without forgetting",
            dataset="stdlib-docs",
            scenario="class-incremental",
            models=("transformer",),
        ),
        "concept-matching": Algorithm(
            "strategies.concept_matching.server:ConceptMatching",
            "clients.concept_matching.client:ConceptMatching",
            "Jiang et al., 2025",
            "a model for each hidden concept; the server clusters what comes back",
            scenario="concepts",
        ),
        "fedet": Algorithm(
            "strategies.fedet.server:FedEt",
            "clients.fedet.client:FedEt",
            "Liu et al., IJCAI 2023",
            "a frozen transformer whose groups of Enhancers learn new classes",
            dataset="stdlib-docs",
            scenario="class-incremental",
            models=("enhanced-transformer", "enhanced-vit"),
        ),
    }
)


def algorithms() -> Mapping[str, Algorithm]:
    """Return all algorithms by name: ours, and those of installed packages.

    Another package registers an `Algorithm` under the entry point group
    ``fcl_flower.algorithms``.
    """
    found = dict(_BUILT_IN)
    for point in entry_points(group="fcl_flower.algorithms"):
        algorithm = point.load()
        if not isinstance(algorithm, Algorithm):
            raise ContractError(f"entry point {point.name} is not an Algorithm")
        found[point.name] = algorithm
    return found


def algorithm(name: str) -> Algorithm:
    """Return the named algorithm.

    Raises:
        ConfigError: there is none of that name; the message lists all.
    """
    known = algorithms()
    if name not in known:
        raise ConfigError(
            f"strategy: {name!r} is unknown; expected one of {', '.join(known)}"
        )
    return known[name]


def local_only_counterpart(config: RunConfig) -> RunConfig | None:
    """Return the same method with nobody to talk to; None where it has no other.

    FedAvg counterpart is sequential local training, so that its twin is ``local``.
    """
    method = algorithm(config.strategy)
    if config.local_only or not method.federated:
        return None
    if not method.counterpart:
        return config.with_values(local_only=True)
    other = algorithm(method.counterpart)
    keys = other.keys()
    known = {key: v for key, v in settings(config.set).items() if key in keys}
    suits = method.dataset if method.dataset != other.dataset else ""
    return config.with_values(
        strategy=method.counterpart,
        dataset=config.dataset or suits,
        label="",
        local_only=other.federated,
        set=inline(known),
    )
