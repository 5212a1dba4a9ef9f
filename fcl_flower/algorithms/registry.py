"""The declaration of an algorithm, and the registry that finds declarations.

An algorithm declares itself as ``ALGORITHM`` in ``strategies/NAME.py`` or in
``strategies/NAME/__init__.py``, where NAME is its name with underscores. An algorithm
of another package is declared by an entry point. Nothing else names an algorithm.
"""

import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, Params, ServerStrategy
from fcl_flower.config.parsing import Scalar, validate_params
from fcl_flower.config.run_config import DEFAULTS, RunConfig, StrategySection
from fcl_flower.core.errors import ConfigError, ContractError, PluginWarning
from fcl_flower.core.registry import Registry

if TYPE_CHECKING:
    from fcl_flower.training.server_trainer import ServerTrainer

DATASET: Final = "digits"
GROUP: Final = "fcl_flower.algorithms"
PACKAGE: Final = "strategies"
STRATEGY: Final = "strategy."


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A server side, a client side, and the hyper-parameters that both take.

    A side is a class or its dotted path ``module:Class``. Loading the side imports the
    path.

    Attributes:
        name: the value of `--strategy`.
        server: a `ServerStrategy`; that of FedAvg unless the method has its own.
        client: a `ClientLearner`.
        params_type: the hyper-parameters of both sides.
        summary: one line for ``fcl list``, without a full stop.
        paper: the method's source; ``-`` for none.
        counterpart: name of the algorithm that trains alike without communication;
            empty where this algorithm itself, run local-only, is its counterpart.
        single_task: each task is learned by a fresh model, alone. The forward transfer
            of other algorithms is measured against this one.
        defaults: values of the configuration where the user sets none, by dotted key,
            such as ``scenario.name`` or ``strategy.strength``. Parameters of a network,
            such as ``model.dropout``, count only where the network has them.
        models: defaults of ``model.name``, at most one for each modality. Other
            modalities get the usual network.
        trainer: dotted path of the `ServerTrainer`, which the server side gets as its
            `trainer`; empty for an algorithm that trains on clients alone.
        privacy_units: values of ``privacy.unit`` that a run may have; none by default.
            With ``client``, an update tells of a client's data only by its tensors.
            Their differences from the received ones, or from zero, may be clipped and
            noised. With ``example``, the learner's `fit` takes steps from gradients of
            single examples.
        needs_single_head: clients train for several tasks together, on samples of old
            tasks or on an old model's answers. This needs one head, and clients with an
            identity.
        needs_classes: the server side needs the plan of the classes in its context. A
            run without a plan is refused.
        returns_to_tasks: a task may come again, as concepts do.
        validates: clients report a validation loss with each update.
        token_labels: labels may be the tokens of an answer, as those of a language
            model are. So the method looks at no class of a sample.
    """

    name: str
    server: str | type[ServerStrategy[Any]] = "strategies.fedavg:FedAvg"
    client: str | type[ClientLearner[Any]]
    params_type: type[Params] = Params
    summary: str = ""
    paper: str = "-"
    counterpart: str = ""
    single_task: bool = False
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    trainer: str = ""
    privacy_units: tuple[str, ...] = ()
    needs_single_head: bool = False
    needs_classes: bool = False
    returns_to_tasks: bool = True
    validates: bool = True
    token_labels: bool = False

    @property
    def dataset(self) -> str:
        """The data set of a run by default."""
        return str(self.defaults.get("data.datasets", DATASET))

    @property
    def scenario(self) -> str:
        """The scenario of a run by default; empty for the data's own."""
        return str(self.defaults.get("scenario.name", ""))

    @property
    def federated(self) -> bool:
        """Whether clients communicate, so that a local-only run differs."""
        return self.server != "strategies.local:NoOpStrategy"

    def load_server(self) -> type[ServerStrategy[Any]]:
        """Import and check the server side.

        Raises:
            ContractError: it is no `ServerStrategy`.
        """
        return self._load("server", self.server, ServerStrategy)

    def load_client(self) -> type[ClientLearner[Any]]:
        """Import and check the client side.

        Raises:
            ContractError: it is no `ClientLearner`.
        """
        return self._load("client", self.client, ClientLearner)

    def _load(self, what: str, path: object, kind: type[Any]) -> type[Any]:
        side = load(path)
        if not (isinstance(side, type) and issubclass(side, kind)):
            raise ContractError(
                f"algorithm {self.name}: got {what} {path}, expected a {kind.__name__}"
            )
        return side

    def load_trainer(self) -> Callable[..., "ServerTrainer"]:
        """Import the class that trains on the server.

        Raises:
            ContractError: the class is missing, or the algorithm has no server trainer.
        """
        trainer = load(self.trainer) if self.trainer else None
        if not callable(trainer):
            raise ContractError(
                f"algorithm {self.name}: got trainer {self.trainer!r}, expected the "
                "path of a class, since its server side trains"
            )
        return trainer

    def params(self, values: Mapping[str, object]) -> Params:
        """Check hyper-parameters, and fill in this algorithm's defaults.

        Args:
            values: by name; a missing one gets its default.

        Raises:
            ConfigError: a name is unknown, or a value is refused.
        """
        preset = {
            key.removeprefix(STRATEGY): value
            for key, value in self.defaults.items()
            if key.startswith(STRATEGY)
        }
        settings = StrategySection.keys()
        complete = {**preset, **values}
        try:
            return validate_params(self.params_type, complete, STRATEGY, settings)
        except ConfigError as error:
            foreign = set(values) - set(self.params_type.model_fields)
            for key in sorted(foreign):
                if owners := _owners(key):
                    raise ConfigError(f"{error}; {key} is of {owners}") from error
            raise


class_incremental = partial(
    Algorithm,
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("transformer",),
    privacy_units=("client",),
    needs_single_head=True,
)
"""The declaration of a method as FedET's tables compare it. Each value may be
replaced."""


def _owners(key: str) -> str:
    """Name the algorithms that have a parameter."""
    declared = algorithms().items()
    return ", ".join(
        n for n, owner in declared if key in owner.params_type.model_fields
    )


def load(path: object) -> object:
    """Import the object of a dotted path ``module:name``; return anything else.

    Returns None if the module lacks the name.
    """
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name, None)
    except ImportError as error:
        raise ContractError(f"{path}: cannot be imported ({error})") from error


def _check_ours(name: str) -> None:
    """Refuse a package of another project in place of ours beside `fcl_flower`.

    Raises:
        ContractError: it is another one, as the name is a plain word.
    """
    spec = find_spec(name)  # which does not import it
    origin = None if spec is None else spec.origin
    ours = Path(__file__).parents[2] / name
    if origin is None or Path(origin).resolve().parent != ours.resolve():
        raise ContractError(
            f"{name}: got {origin}, expected that in {ours}: rename the other, which "
            "stands before it on Python's path"
        )


class _Declared(Mapping[str, Algorithm]):
    """The algorithms of this project by name; each is imported at its first access."""

    @override
    def __getitem__(self, name: str) -> Algorithm:
        if name not in set(self):
            raise KeyError(name)
        module = f"{PACKAGE}.{name.replace('-', '_')}"
        declared = getattr(import_module(module), "ALGORITHM", None)
        if not isinstance(declared, Algorithm) or declared.name != name:
            raise ContractError(
                f"{module}: got {declared!r}, expected ALGORITHM, an Algorithm of the "
                f"name {name!r}"
            )
        return declared

    @override
    def __iter__(self) -> Iterator[str]:
        for name in (PACKAGE, "clients"):
            _check_ours(name)
        package = import_module(PACKAGE)
        modules = pkgutil.iter_modules(package.__path__)
        return iter(sorted(module.name.replace("_", "-") for module in modules))

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


ALGORITHMS: Final = Registry[Algorithm]("strategy", GROUP, Algorithm, _Declared())
"""The algorithms of this project, of installed packages, and of this process."""


def algorithm(name: str) -> Algorithm:
    """Find an algorithm by name; of this project's only its own module is imported.

    Raises:
        ConfigError: no algorithm has this name; the message lists all.
        ContractError: its declaration cannot be loaded, or has another name.
    """
    return _under(name, ALGORITHMS[name])


def algorithms() -> Mapping[str, Algorithm]:
    """List all algorithms by name, this project's and those of installed packages.

    A package's algorithm that cannot be used is left out with a `PluginWarning`.

    Raises:
        ContractError: a declaration of this project cannot be loaded, or has another
            name.
    """
    usable = {}
    for name, declared in ALGORITHMS.items():
        try:
            usable[name] = _under(name, declared)
        except ContractError as error:
            warnings.warn(f"{error}; it is left out", PluginWarning, stacklevel=2)
    return MappingProxyType(usable)


def _under(name: str, declared: Algorithm) -> Algorithm:
    if declared.name != name:
        raise ContractError(
            f"entry point {name}: got the algorithm {declared.name!r}, expected one of "
            "that name"
        )
    return declared


def registered(own: Algorithm) -> AbstractContextManager[None]:
    """Register an algorithm in this process alone, as long as the context lasts.

    Raises:
        ConfigError: another algorithm has the name.
    """
    return ALGORITHMS.registered(own.name, own)


def local_only_counterpart(config: RunConfig) -> RunConfig | None:
    """Derive the same run without communication; None where it would be no other run.

    The counterpart of FedAvg is ``local``: sequential training of one model. Where the
    run has a title, so has the other, and ends with "local-only".
    """
    method = algorithm(config.strategy.name)
    if config.strategy.local_only or not method.federated:
        return None
    # A client alone sends nothing that it learns: its data need no noise and no masks.
    protections = ("privacy.", "federation.secure_")
    config = config.replace(
        **{
            key: value
            for key, value in DEFAULTS.items()
            if key.startswith(protections) and key != "privacy.scores"
        }
    )
    if not method.counterpart:
        return config.replace(local_only=True)
    other = algorithm(method.counterpart)
    suits = method.dataset if method.dataset != other.dataset else ""
    shared = {
        key: value
        for key, value in config.strategy.params.items()
        if key in other.params_type.model_fields
    }
    kept = {k: v for k, v in config.flat().items() if not k.startswith(STRATEGY)}
    section = {"name": other.name, "local_only": other.federated, **shared}
    title = config.run.title
    if title and not other.federated:  # otherwise the label says so
        title += " local-only"
    return RunConfig.of({**kept, "strategy": section}).replace(
        title=title, datasets=config.data.datasets or suits
    )
