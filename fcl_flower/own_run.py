"""What a run has to be told where clients have data of their own.

The server sees no data: names, widths and counts that otherwise follow from a data set
are settings then.
"""

from types import MappingProxyType

import numpy as np

from fcl_flower.config import RunConfig
from fcl_flower.data.own_files import ENDINGS
from fcl_flower.data.own_task import Wanted
from fcl_flower.data.scenarios import scenario_entry
from fcl_flower.data.word_vectors import WordVectors
from fcl_flower.errors import ConfigError
from fcl_flower.models import model_entry


def own_data(config: RunConfig) -> bool:
    """Return whether the clients of a run have data of their own."""
    return bool(config.scenario) and scenario_entry(config.scenario).own


def check_settings(config: RunConfig) -> None:
    """Refuse a run over clients' own data that leaves open what nobody can look up.

    Raises:
        ConfigError: one sentence names the setting, and what was expected.
    """
    entry = model_entry(config.model) if config.model else None
    kind = "" if entry is None else entry.kind
    encoder = entry is not None and entry.encoder != ""
    numbered = kind in ("features", "text") and not encoder
    single, names = config.head == "single", config.label_names
    for wrong, key, value, expected in (
        (config.dataset, "dataset", config.dataset, "none"),
        (not kind, "model", config.model, "the name of a network that suits the data"),
        (
            numbered and not config.features,
            "features",
            config.features,
            "the numbers in a sample, or in a word's vector",
        ),
        (not numbered and config.features, "features", config.features, "0"),
        (
            config.public_data and kind == "text" and not encoder,
            "public-data",
            config.public_data,
            "none with word vectors, which only clients have",
        ),
        (names and not single, "labels", config.labels, "none but with a single head"),
        (
            single and (len(names) < 2 or len({*names}) < len(names)),
            "labels",
            config.labels,
            "different names of all classes, for a single head to number them alike",
        ),
        (
            not single and config.classes_per_task < 2,
            "classes-per-task",
            config.classes_per_task,
            "at least 2, the most classes that any task has",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"{key}: {value!r} is refused: expected {expected}, for scenario "
                f"{config.scenario}, whose clients have data of their own"
            )


def wanted(config: RunConfig, input_shape: tuple[int, ...]) -> Wanted:
    """Return what a run, completed, expects of a client's data.

    Args:
        config: of the run.
        input_shape: of its model.
    """
    kinds = {kind.kind: kind for kind in ENDINGS}
    kind = model_entry(config.model).kind
    return Wanted(
        kind=kinds[kind],
        input_shape=input_shape,
        width=config.features if kind == "text" else 0,
        classes=config.classes_per_task,
        labels=config.label_names,
        valid_fraction=config.valid_fraction,
        seed=config.seed,
    )


def no_words(config: RunConfig) -> WordVectors:
    """Return vectors of no word: all that the server needs is how wide they are."""
    table = np.zeros((1, config.features), np.float32)
    origin = f"each client's own file, {config.features} dimensions"
    return WordVectors(MappingProxyType({}), table, origin)
