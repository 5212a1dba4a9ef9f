"""What declares an algorithm, and how the declarations are found.

An algorithm declares itself as ``ALGORITHM`` in ``strategies/NAME.py`` or in
``strategies/NAME/__init__.py``, where NAME is its name with underscores; one of another
package by an entry point. Nothing else names it.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from fcl_flower.algorithms.base import ClientLearner, Params, ServerStrategy
from fcl_flower.config.parsing import Scalar, validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.sections import StrategySection
from fcl_flower.core.errors import ContractError, refuse, unknown

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
        defaults: values of the configuration where the user gives none, by dotted key,
            such as ``scenario.name`` or ``strategy.strength``.
        models: likewise of ``model.name``, at most one for each modality; the others
            get the usual.
        trainer: dotted path of what trains on the server, which the server side gets
            as its `trainer`; empty for an algorithm that trains on clients alone.
    """

    name: str
    server: str | type[ServerStrategy[Any]]
    client: str | type[ClientLearner[Any]]
    params_type: type[Params] = Params
    summary: str = ""
    paper: str = "-"
    counterpart: str = ""
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    trainer: str = ""

    @property
    def dataset(self) -> str:
        """Return the data set that it runs on by default."""
        return str(self.defaults.get("data.datasets", DATASET))

    @property
    def scenario(self) -> str:
        """Return the scenario that it runs in by default; empty for the data's."""
        return str(self.defaults.get("scenario.name", ""))

    @property
    def federated(self) -> bool:
        """Return whether clients communicate, so that a local-only run differs."""
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
        """Return checked hyper-parameters, with the defaults of this algorithm.

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
        return validate_params(self.params_type, given, STRATEGY, known)


def load(path: object) -> object:
    """Return what a dotted path ``module:name`` names; anything else is returned.

    None stands for a name that the module does not have.
    """
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    return getattr(import_module(module), name, None)


def algorithm(name: str) -> Algorithm:
    """Return the named algorithm; of ours only its own module is imported.

    Raises:
        ConfigError: there is none of that name; the message lists all.
        ContractError: its declaration is none.
    """
    if name in _of_this_process:
        return _of_this_process[name]
    module = name.replace("-", "_")
    if module in _modules():
        found = _declared(module)
        if found.name == name:
            return found
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _registered(point)
    raise unknown("strategy", name, algorithms())


def algorithms() -> Mapping[str, Algorithm]:
    """Return all algorithms by name, ours and those of installed packages.

    Raises:
        ContractError: a declaration is none, or two have one name.
    """
    found = {a.name: a for a in map(_declared, sorted(_modules()))}
    for point in entry_points(group=GROUP):
        if point.name in found:
            raise ContractError(
                f"entry point {point.name}: got the name of another algorithm, "
                "expected a name of its own"
            )
        found[point.name] = _registered(point)
    return MappingProxyType({**found, **_of_this_process})


_of_this_process: dict[str, Algorithm] = {}


@contextmanager
def registered(own: Algorithm) -> Iterator[None]:
    """Let this process, and no other, find an algorithm by its name for a while.

    Raises:
        ConfigError: another algorithm has the name.
    """
    if own.name in algorithms():
        raise refuse("algorithm", own.name, "a name that no other algorithm has")
    _of_this_process[own.name] = own
    try:
        yield
    finally:
        del _of_this_process[own.name]


def _modules() -> set[str]:
    """Return the names of the modules that declare our algorithms."""
    return {
        found.name for found in pkgutil.iter_modules(import_module(PACKAGE).__path__)
    }


def _declared(module: str) -> Algorithm:
    found = getattr(import_module(f"{PACKAGE}.{module}"), "ALGORITHM", None)
    if not isinstance(found, Algorithm) or found.name.replace("-", "_") != module:
        raise ContractError(
            f"{PACKAGE}.{module}: got {found!r}, expected ALGORITHM, an Algorithm of "
            "that name"
        )
    return found


def _registered(point: EntryPoint) -> Algorithm:
    found = point.load()
    if not isinstance(found, Algorithm):
        raise ContractError(
            f"entry point {point.name}: got {found!r}, expected an Algorithm"
        )
    return found


def local_only_counterpart(config: RunConfig) -> RunConfig | None:
    """Return the same run without communication; None where there is no other.

    That of FedAvg is sequential training of one model, which is ``local``.
    """
    method = algorithm(config.strategy.name)
    if config.strategy.local_only or not method.federated:
        return None
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
