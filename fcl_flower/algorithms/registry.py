"""What declares an algorithm, and how the declarations are found.

An algorithm declares itself as ``ALGORITHM`` in ``strategies/NAME.py`` or in
``strategies/NAME/__init__.py``, where NAME is its name with underscores; one of another
package by an entry point. Nothing else names it.
"""

import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, Params, ServerStrategy
from fcl_flower.config.parsing import Scalar, validate_params
from fcl_flower.config.run_config import RunConfig, StrategySection
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

    A side is a class or its dotted path ``module:Class``; a path is imported when the
    side is loaded.

    Attributes:
        name: what `--strategy` takes.
        server: a `ServerStrategy`.
        client: a `ClientLearner`.
        params_type: the hyper-parameters of both sides.
        summary: one line for ``fcl list``, without a full stop.
        paper: where it comes from; ``-`` for none.
        counterpart: name of the algorithm that trains alike without communication;
            empty where that is this one, run local-only.
        single_task: each task is learned by a fresh model, alone, against which the
            forward transfer of others is measured.
        defaults: values of the configuration where the user gives none, by dotted key,
            such as ``scenario.name`` or ``strategy.strength``; parameters of a network,
            such as ``model.dropout``, where the network has them.
        models: likewise of ``model.name``, at most one for each modality; the others
            get the usual.
        trainer: dotted path of what trains on the server, which the server side gets
            as its `trainer`; empty for an algorithm that trains on clients alone.
        privacy_units: what differential privacy can hide in a run of it (the values of
            ``privacy.unit``). ``client``: all that an update tells of a client's data
            is in its tensors, and their differences from what was received, or from
            zero, may be clipped and noised. ``example``: the learner's `fit` takes
            steps from gradients of single examples. Nothing, unless it says so.
        needs_single_head: clients train for several tasks together, on samples of old
            ones or on what an old model says; these need one head, and an identity.
        returns_to_tasks: a task may come again, as concepts do.
        validates: clients tell a validation loss with each update.
    """

    name: str
    server: str | type[ServerStrategy[Any]]
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
    returns_to_tasks: bool = True
    validates: bool = True

    @property
    def dataset(self) -> str:
        """Data set that it runs on by default."""
        return str(self.defaults.get("data.datasets", DATASET))

    @property
    def scenario(self) -> str:
        """Scenario that it runs in by default; empty for the data's."""
        return str(self.defaults.get("scenario.name", ""))

    @property
    def federated(self) -> bool:
        """Clients communicate, so that a local-only run differs."""
        return self.server != "strategies.local:NoOpStrategy"

    def load_server(self) -> type[ServerStrategy[Any]]:
        """Import and check the server side.

        Raises:
            ContractError: it is no `ServerStrategy`.
        """
        found = load(self.server)
        if not (isinstance(found, type) and issubclass(found, ServerStrategy)):
            raise ContractError(
                f"algorithm {self.name}: got server {self.server}, expected a "
                "ServerStrategy"
            )
        return found

    def load_client(self) -> type[ClientLearner[Any]]:
        """Import and check the client side.

        Raises:
            ContractError: it is no `ClientLearner`.
        """
        found = load(self.client)
        if not (isinstance(found, type) and issubclass(found, ClientLearner)):
            raise ContractError(
                f"algorithm {self.name}: got client {self.client}, expected a "
                "ClientLearner"
            )
        return found

    def load_trainer(self) -> Callable[..., "ServerTrainer"]:
        """Import what trains on the server.

        Raises:
            ContractError: it is not there, or nothing trains on the server.
        """
        found = load(self.trainer) if self.trainer else None
        if not callable(found):
            raise ContractError(
                f"algorithm {self.name}: got trainer {self.trainer!r}, expected the "
                "path of a class, since its server side trains"
            )
        return found

    def params(self, values: Mapping[str, object]) -> Params:
        """Check hyper-parameters, with this algorithm's defaults for the missing ones.

        Args:
            values: by name; those that are missing have their defaults.

        Raises:
            ConfigError: a name is unknown, or a value refused.
        """
        preset = {
            key.removeprefix(STRATEGY): value
            for key, value in self.defaults.items()
            if key.startswith(STRATEGY)
        }
        known = StrategySection.keys()
        given = {**preset, **values}
        try:
            return validate_params(self.params_type, given, STRATEGY, known)
        except ConfigError as error:
            foreign = set(values) - set(self.params_type.model_fields)
            for key in sorted(foreign):
                if owners := _owners(key):
                    raise ConfigError(f"{error}; {key} is of {owners}") from error
            raise


class_incremental = partial(
    Algorithm,
    server="strategies.fedavg:FedAvg",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("transformer",),
    privacy_units=("client",),
    needs_single_head=True,
)
"""Declare a method as FedET's tables compare them; all values may be others."""


def _owners(key: str) -> str:
    """Name the algorithms that have a parameter."""
    found = algorithms().items()
    return ", ".join(n for n, one in found if key in one.params_type.model_fields)


def load(path: object) -> object:
    """Import what a dotted path ``module:name`` names; anything else is returned.

    None stands for a name that the module does not have.
    """
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name, None)
    except ImportError as error:
        raise ContractError(f"{path}: cannot be imported ({error})") from error


class _Declared(Mapping[str, Algorithm]):
    """Our algorithms by name; a declaration is imported when it is asked for."""

    @override
    def __getitem__(self, name: str) -> Algorithm:
        if name not in set(self):
            raise KeyError(name)
        module = f"{PACKAGE}.{name.replace('-', '_')}"
        found = getattr(import_module(module), "ALGORITHM", None)
        if not isinstance(found, Algorithm) or found.name != name:
            raise ContractError(
                f"{module}: got {found!r}, expected ALGORITHM, an Algorithm of the "
                f"name {name!r}"
            )
        return found

    @override
    def __iter__(self) -> Iterator[str]:
        package = import_module(PACKAGE)
        ours, found = Path(__file__).parents[2] / PACKAGE, package.__file__
        # A plain word, which others give to files of theirs, too.
        if found is None or Path(found).resolve().parent != ours.resolve():
            raise ContractError(
                f"{PACKAGE}: got {found}, expected that in {ours}: rename the other, "
                "which stands before it on Python's path"
            )
        modules = pkgutil.iter_modules(package.__path__)
        return iter(sorted(module.name.replace("_", "-") for module in modules))

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


ALGORITHMS: Final = Registry[Algorithm]("strategy", GROUP, Algorithm, _Declared())
"""Ours, those of installed packages, and those of this process."""


def algorithm(name: str) -> Algorithm:
    """Find an algorithm by name; of ours only its own module is imported.

    Raises:
        ConfigError: there is none of that name; the message lists all.
        ContractError: its declaration cannot be loaded, or has another name.
    """
    return _under(name, ALGORITHMS[name])


def algorithms() -> Mapping[str, Algorithm]:
    """List all algorithms by name, ours and those of installed packages.

    One of a package that cannot be used is left out with a `PluginWarning`.

    Raises:
        ContractError: a declaration of ours cannot be loaded, or has another name.
    """
    found = {}
    for name, one in ALGORITHMS.items():
        try:
            found[name] = _under(name, one)
        except ContractError as error:
            warnings.warn(f"{error}; it is left out", PluginWarning, stacklevel=2)
    return MappingProxyType(found)


def _under(name: str, found: Algorithm) -> Algorithm:
    if found.name != name:
        raise ContractError(
            f"entry point {name}: got the algorithm {found.name!r}, expected one of "
            "that name"
        )
    return found


def registered(own: Algorithm) -> AbstractContextManager[None]:
    """Let this process, and no other, find an algorithm by its name for a while.

    Raises:
        ConfigError: another algorithm has the name.
    """
    return ALGORITHMS.registered(own.name, own)


def local_only_counterpart(config: RunConfig) -> RunConfig | None:
    """Make the same run without communication; None where there is no other.

    That of FedAvg is sequential training of one model, which is ``local``.
    """
    method = algorithm(config.strategy.name)
    if config.strategy.local_only or not method.federated:
        return None
    # Alone, a client hides its data by sending none of what it learns.
    config = config.replace(unit="none", noise_multiplier=0.0)
    config = config.replace(secure_aggregation=False)  # there is nothing to add up
    if not method.counterpart:
        return config.replace(local_only=True)
    other = algorithm(method.counterpart)
    suits = method.dataset if method.dataset != other.dataset else ""
    known = {
        key: value
        for key, value in config.strategy.params.items()
        if key in other.params_type.model_fields
    }
    kept = {k: v for k, v in config.flat().items() if not k.startswith(STRATEGY)}
    section = {"name": other.name, "local_only": other.federated, **known}
    return RunConfig.of({**kept, "strategy": section}).replace(
        title="", datasets=config.data.datasets or suits
    )
