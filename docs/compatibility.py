"""What goes with which strategy: asked of the checks that refuse a run, and told.

`generate.py` writes it to docs/reference/compatibility.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from fcl_flower.algorithms.base import (
    ModelShape,
    ServerContext,
    ServerQueries,
    ServerStrategy,
)
from fcl_flower.algorithms.registry import Algorithm, algorithms
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.setup.build import validate
from fcl_flower.setup.checks import check_parameters
from fcl_flower.setup.entries import Entries
from fcl_flower.setup.resolve import resolve

Settings: TypeAlias = Mapping[str, str | int | float | bool]
Column: TypeAlias = Callable[[Algorithm], str]

_SMALL: Final[Settings] = {
    "data.datasets": "digits",
    "model.name": "small",
    "scenario.clients": 4,
    "scenario.tasks": 2,
}
_LOCAL: Final[Settings] = {
    "data.datasets": "",
    "scenario.name": "local-data",
    "scenario.classes_per_task": 2,
}

HEAD = """\
# Compatibility

<!-- Made by docs/generate.py; do not edit. -->

This page says which strategy goes with which task, network and protection. Each cell is
the answer of the check that accepts or refuses a run before it begins. Tests run a
round of what it accepts.

The [cards of the strategies](strategies.md#all-of-them) say what each one does.
[Protections](../explain/protections.md#why-a-strategy-refuses) says why one refuses.
"""

_TASKS = """\
## Tasks and networks

- *Network*: `any`, or the only ones that the strategy trains.
- *Frozen body*: whether it trains the heads of a network whose body is frozen, such as
  `patch-filters`. The cell names the heads.
- *Tasks with ids*: the scenarios `overlapped`, `mixed`, `classes` and `text`. The cell
  names the heads: `any` is a head for each task, or one over all classes.
- *New classes or domains*: the scenarios `class-incremental` and `domains`, always with
  one head.
- *Hidden concepts*: the scenario `concepts`, always with one head. `with ids` needs
  `scenario.reveal_ids`.
- *Local data*: the scenario `local-data`. The cell names the heads.
- *Instructions*: whether it [tunes a language model](../howto/language-models.md), in
  the scenario `domains` or with local data. The columns before are for classes.
"""

_PROTECTIONS = """\
## Protections and rounds

- *Client*, *example*: the unit of [differential privacy](../howto/privacy.md).
- *Secure*: [secure aggregation](../explain/protections.md#secure-aggregation).
  `with settings` refuses the default parameters; the card names the others.
- *Robust*: a [policy](../howto/hostile-clients.md#policies) other than the mean.
- *Asynchronous*: [updates count as they come](../explain/rounds.md).
- *int8*: [`federation.wire_dtype`](../explain/wire.md) of `int8` and less.
- *Balance*: values of [`training.balance`](strategies.md#unbalanced-classes).
"""

_KEPT = """\
## What stays on a client, and what the server does

- *Predicts with*: what a client keeps, or the model that it receives for a test.
- *Keeps samples*: the setting that bounds the stored samples of finished tasks.
- *Others receive*: groups of tensors that go to other clients as one client sent them.
- *Asks*: with default parameters the server asks clients about their data before they
  train. `knowledge = "sit:K"` adds that to `fedweit` and `fedseit`.
- *Trains*: the server trains a network of its own.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            HEAD,
            _TASKS,
            *_table(
                {
                    "network": _network,
                    "frozen body": _frozen_body,
                    "tasks with ids": lambda one: _heads(one, {}),
                    "new classes or domains": _unknown_tasks,
                    "hidden concepts": _concepts,
                    "local data": lambda one: _heads(one, _LOCAL),
                    "instructions": lambda one: _word(one.token_labels),
                }
            ),
            _PROTECTIONS,
            *_table(
                {
                    "client": lambda one: _yes(one, _noised("client")),
                    "example": lambda one: _yes(one, _noised("example")),
                    "secure": lambda one: _yes(one, _SECURE),
                    "robust": lambda one: _yes(one, _ROBUST),
                    "asynchronous": lambda one: _yes(one, _ASYNCHRONOUS),
                    "int8": lambda one: _yes(one, {"federation.wire_dtype": "int8"}),
                    "balance": _balance,
                }
            ),
            _KEPT,
            *_table(
                {
                    "predicts with": _predicts,
                    "keeps samples": _samples,
                    "others receive": _shared,
                    "asks": lambda one: _word(_asks(one)),
                    "trains": lambda one: _word(bool(one.trainer)),
                }
            ),
        ]
    )


_NEW_CLASSES: Final[Settings] = {"scenario.name": "class-incremental"}
_DOMAINS: Final[Settings] = {
    "scenario.name": "domains",
    "data.datasets": "digits,rotated-90:digits",
}
_SECURE: Final[Settings] = {"federation.secure_aggregation": True}
_ROBUST: Final[Settings] = {"federation.aggregation": "median"}
_ASYNCHRONOUS: Final[Settings] = {"asynchronous.enabled": True}


def _table(columns: Mapping[str, Column]) -> Iterator[str]:
    yield _row(["strategy", *columns])
    yield _row(["---"] * (len(columns) + 1))
    for name, one in algorithms().items():
        yield _row([f"`{name}`", *(column(one) for column in columns.values())])
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _word(holds: bool) -> str:
    return "yes" if holds else "no"


def _refused(one: Algorithm, settings: Settings) -> str:
    """Name the setting for which a run is refused; empty where it is accepted."""
    try:
        run = Entries(resolve(_config(one, settings)))
        check_parameters(run, _server(one, run))
    except ConfigError as error:
        return str(error).partition(":")[0]
    return ""


def _server(one: Algorithm, run: Entries) -> ServerStrategy[Any]:
    single = run.config.model.head == "single"
    shape = ModelShape(features=64, classes=4, single_head=single)
    context = ServerContext(seed=0, model=shape, trainer=lambda: None)
    return one.load_server()(run.params, context)


def _noised(unit: str) -> Settings:
    noise = {"privacy.noise_multiplier": 1.0, "privacy.clip": 1.0}
    return {"privacy.unit": unit, **noise}


def _config(one: Algorithm, settings: Settings) -> RunConfig:
    return RunConfig.of({"strategy.name": one.name, **_SMALL, **settings})


def _yes(one: Algorithm, settings: Settings) -> str:
    key = _refused(one, settings)
    of_strategy = key.removeprefix("strategy.") in one.params_type.model_fields
    return "with settings" if of_strategy else _word(not key)


def _heads(one: Algorithm, settings: Settings) -> str:
    tasks = {"scenario.name": "overlapped", **settings}
    # With local data a single head numbers the classes by their names.
    named = {"data.class_names": "a,b,c,d"} if settings else {}
    found = (
        not _refused(one, {**tasks, "model.head": "multi"}),
        not _refused(one, {**tasks, **named, "model.head": "single"}),
    )
    names = {(True, True): "any", (False, True): "one", (True, False): "each"}
    return names.get(found, "no")


def _unknown_tasks(one: Algorithm) -> str:
    cells = {_yes(one, settings) for settings in (_NEW_CLASSES, _DOMAINS)}
    if len(cells) > 1:
        raise ContractError(f"{one.name}: new classes and domains need columns each")
    return cells.pop()


def _concepts(one: Algorithm) -> str:
    hidden = {"scenario.name": "concepts"}
    if not _refused(one, hidden):
        return "yes"
    revealed = _refused(one, {**hidden, "scenario.reveal_ids": True})
    return "no" if revealed else "with ids"


def _network(one: Algorithm) -> str:
    try:
        validate(resolve(_config(one, _NEW_CLASSES)))
    except (ConfigError, ContractError):
        usual = resolve(RunConfig.of({"strategy.name": one.name})).config.model.name
        return ", ".join(f"`{name}`" for name in one.models or (usual,))
    return "any"


def _frozen_body(one: Algorithm) -> str:
    accepted = [accepts_frozen_body(one, single_head=single) for single in (0, 1)]
    names = {(True, True): "any", (False, True): "one", (True, False): "each"}
    return names.get((accepted[0], accepted[1]), "no")


def accepts_frozen_body(one: Algorithm, *, single_head: bool, **more: Scalar) -> bool:
    """Tell whether a run whose network has nothing to train but heads is accepted."""
    try:
        validate(resolve(with_frozen_body(one, single_head=single_head, **more)))
    except (ConfigError, ContractError):
        return False
    return True


def with_frozen_body(one: Algorithm, *, single_head: bool, **more: Scalar) -> RunConfig:
    """Make a small run whose network has nothing to train but heads."""
    tasks = "class-incremental" if single_head else "overlapped"
    head = "single" if single_head else "multi"
    body = {"model.name": "patch-filters", "model.filters": 4, "model.head": head}
    return _config(one, {"scenario.name": tasks, **body, **more})


def _balance(one: Algorithm) -> str:
    return ", ".join(f"`{value}`" for value in one.load_client().balances) or "no"


def _predicts(one: Algorithm) -> str:
    kept = one.load_server().predicts_locally
    return "what it keeps" if kept else "what it receives"


def _samples(one: Algorithm) -> str:
    bounds = ("buffer_fraction", "memory_samples")
    found = [f"`{key}`" for key in bounds if key in one.params_type.model_fields]
    return " or ".join(found) or "no"


def _shared(one: Algorithm) -> str:
    return ", ".join(f"`{kind}`" for kind in one.load_server().kinds("private")) or ""


def _asks(one: Algorithm) -> bool:
    if not issubclass(one.load_server(), ServerQueries):
        return False
    server = _server(one, Entries(resolve(_config(one, {}))))
    return isinstance(server, ServerQueries) and server.asks
