"""Refusals of settings that do not go together, or not with the method.

Sections refuse values outside of a range, and `RunConfig` refuses pairs of settings.
Here a generator for each subject yields the settings to refuse, each with its value and
the expected value. A user gets the first of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from fcl_flower.algorithms.base import (
    ServerQueries,
    ServerStrategy,
    SumsUpdates,
    adds_up,
)
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.run_config import (
    ANSWER_MEASURES,
    DEFAULTS,
    LEAST_SUMMANDS,
    LEVELS,
    MOST_LOST,
    RunConfig,
    Wrong,
    field_of,
)
from fcl_flower.core.errors import config_error
from fcl_flower.models.registry import MODELS
from fcl_flower.setup.entries import Entries

if TYPE_CHECKING:
    from fcl_flower.models.heads import MultiHeadModel

ON_MODELS = frozenset({"sign-flip", "noise", "scaling", "counts"})
"""Attacks on the models that clients send."""
SINGLE_UPDATES = (
    "federation.aggregation federation.clip_to_median federation.examples_limit"
)
"""Settings that compare the updates of a round."""
NO_NAMES = "the names of all classes, and no growing head"


def check(run: Entries) -> None:
    """Refuse settings that do not go together, for any data."""
    for subject in (
        validation,
        data,
        pixels,
        augmentation,
        secure_aggregation,
        scenario,
        joining,
        heads,
        growing_head,
        instructions,
        asynchronous,
        privacy,
        method,
    ):
        _refuse_first(subject(run))


def check_parameters(run: Entries, strategy: ServerStrategy[Any]) -> None:
    """Refuse settings that do not go with the parameters of a server side."""
    unit, name = run.config.privacy.unit, run.config.strategy.name
    if unit != "none" and isinstance(strategy, ServerQueries) and strategy.asks:
        why = "whose server asks clients about their data (strategy.knowledge)"
        raise config_error("privacy.unit", unit, f"'none' for {name} {why}")
    if run.config.federation.secure_aggregation:
        assert isinstance(strategy, SumsUpdates)
        strategy.check_summable()


def check_network(run: Entries, network: "MultiHeadModel") -> None:
    """Refuse a batch, a privacy unit or pixels that a network does not allow."""
    _refuse_first(_of_network(run, network))


def _refuse_first(refusals: Iterable[Wrong]) -> None:
    for key, value, expected in refusals:
        raise config_error(key, value, expected)


# ---- the method


class Need(NamedTuple):
    """Settings whose values depend on what a method declares.

    Attributes:
        keys: settings by ``section.key``, separated by spaces.
        allows: whether the method allows a value; its default needs no permission.
        why: end of the sentence of a refusal.
        expected: its beginning; empty for the choices that the method allows.
    """

    keys: str
    allows: Callable[[Entries, Any], bool]
    why: str
    expected: str = ""


def _trains_one_head(run: Entries) -> bool:
    return run.config.scenario.joint or run.algorithm.needs_single_head


def _communicates(run: Entries) -> bool:
    return run.algorithm.federated and not run.config.strategy.local_only


def _is_open_to(run: Entries, attack: str) -> bool:
    server = run.server
    if attack == "adapters":
        return bool(server.kinds("private"))
    averages = server.kinds("model") or server.robust_aggregation
    sends_models = averages or not server.kinds("private")
    return attack not in ON_MODELS or bool(sends_models and not adds_up(server))


NEEDS = (
    Need(
        "federation.patience",
        lambda run, _: run.algorithm.validates,
        "whose clients measure no validation loss",
    ),
    Need(
        "data.public_path",
        lambda run, _: bool(run.algorithm.trainer) and run.spec.local_data,
        "unless it trains on the server, with local data",
    ),
    Need(
        "model.mask_loss",
        lambda run, _: not run.algorithm.trainer,
        "which trains on the server on all classes",
    ),
    Need(
        "model.mask_loss",
        lambda run, _: not run.algorithm.needs_single_head,
        "whose losses are over classes of old tasks, too",
    ),
    Need(
        "model.growing_head",
        lambda run, _: not run.algorithm.trainer or run.algorithm.needs_classes,
        "which trains on the server on all classes",
    ),
    Need(
        "model.head",
        lambda run, head: head == "single" or not _trains_one_head(run),
        "which trains one head for several tasks together",
    ),
    Need(
        "scenario.name",
        lambda run, _: run.algorithm.returns_to_tasks or not run.scenario_entry.hidden,
        "which would take each for another task",
        "one whose tasks do not come again",
    ),
    Need(
        "scenario.name",
        lambda run, _: not (run.spec.hidden_tasks and _trains_one_head(run)),
        "which trains one head for several tasks together",
        "one whose tasks are told apart",
    ),
    Need(
        "scenario.name",
        lambda run, _: not run.spec.local_data or not run.algorithm.needs_classes,
        "whose server has to know them before the run",
        "one whose classes are known",
    ),
    Need(
        "privacy.unit",
        lambda run, _: _communicates(run),
        "whose clients send nothing that they learn",
    ),
    Need(
        "privacy.unit",
        lambda run, unit: unit in run.algorithm.privacy_units,
        "whose clients tell more than the noise of this unit covers",
    ),
    Need(
        "training.balance",
        lambda run, balance: balance in run.algorithm.load_client().balances,
        "whose clients balance classes in no other way",
    ),
    Need(
        "training.augment",
        lambda run, _: run.algorithm.load_client().augments,
        "whose clients meet all samples as they are",
    ),
    Need(
        "federation.wire_dtype",
        lambda run, dtype: (
            dtype not in LEVELS
            or not _communicates(run)
            or bool(run.server.kinds("model") or run.server.kinds("private"))
        ),
        "which sends no models that could be rounded",
    ),
    Need(
        "federation.secure_aggregation",
        lambda run, _: issubclass(run.server, SumsUpdates),
        "whose server needs other things than sums over the clients of a round",
    ),
    Need(
        "asynchronous.enabled",
        lambda run, _: (
            adds_up(run.server)
            or (bool(run.server.kinds("model")) and not run.server.needs_rounds)
        ),
        "which looks at all updates of a round together",
    ),
    Need(
        "federation.aggregation federation.clip_to_median",
        lambda run, _: run.server.robust_aggregation,
        "which averages no updates that way",
    ),
    Need(
        "federation.weighting",
        lambda run, _: not adds_up(run.server),
        "whose sums count samples",
    ),
    Need("federation.attack", _is_open_to, "whose clients send nothing else to attack"),
)


def method(run: Entries) -> Iterator[Wrong]:
    """Find settings that the method's declarations do not allow."""
    name = run.config.strategy.name + " local-only" * run.config.strategy.local_only
    for need in NEEDS:
        for key, value, default in run.config.must_be(need.keys, ""):
            if need.allows(run, value):  # may load a side of the method
                continue
            choices = [
                repr(choice)
                for choice in get_args(field_of(key).annotation)
                if choice and (choice == DEFAULTS[key] or need.allows(run, choice))
            ]
            expected = need.expected or " or ".join(choices) or default.strip()
            yield key, value, f"{expected} for {name}, {need.why}"


# ---- settings, scenario and data


def validation(run: Entries) -> Iterator[Wrong]:
    """Find settings that need validation samples; local data may bring some."""
    config, fraction = run.config, run.config.scenario.valid_fraction
    if fraction or run.spec.local_data:
        return
    keys = "training.lr_patience training.early_stopping_patience federation.patience"
    why = "with scenario.valid_fraction 0, as no loss shows that training stagnates"
    yield from config.must_be(keys, why, 0)
    if run.spec.hidden_tasks:
        why = "hidden concepts, which a client infers from validation samples"
    elif run.params.needs_validation:
        why = "these parameters of the strategy, which need validation samples"
    else:
        return
    yield "scenario.valid_fraction", fraction, f"above 0 for {why}"


def data(run: Entries) -> Iterator[Wrong]:
    """Find settings of data that the run does not use."""
    config, section, modality = run.config, run.config.data, run.spec.modality
    if not run.spec.local_data:
        keys = "data.class_names data.labels data.columns"
        yield from config.must_be(keys, "with data sets, which have their own names")
        why = f"for scenario {config.scenario.name}, whose samples are shared out"
        yield from config.must_be("scenario.joined scenario.sat_out", why)
    columns, features = section.column_names, config.model.num_features
    if modality != "tabular":
        yield from config.must_be("data.columns", "but for tables")
    elif columns and len(columns) != features:
        expected = f"the names of {features} columns, as model.num_features says"
        yield "data.columns", section.columns, expected
    if modality != "text" or run.model_entry.encoder:
        why = f"for model {config.model.name}, which needs none"
        yield from config.must_be("data.word_vectors", why)


def pixels(run: Entries) -> Iterator[Wrong]:
    """Find a normalisation that suits no image, or that shows hidden data."""
    config, modality = run.config, run.spec.modality
    key, normalise = "data.normalise", config.data.normalise
    if modality != "images":
        yield from config.must_be(key, f"for {modality} data, which have no pixels")
    if normalise in ("model", "fixed"):
        return
    if normalise == "data":
        if config.privacy.unit != "none" or config.federation.secure_aggregation:
            hidden = "privacy.unit or federation.secure_aggregation"
            why = "as the server would see sums of each client's pixels"
            yield key, normalise, f"another with {hidden}, {why}"
        return
    channels, statistics = run.spec.input_shape[0], config.data.pixel_statistics
    if statistics is None or not {*map(len, statistics)} <= {1, channels}:
        expected = (
            "model, fixed, data, or mean and deviation such as 0.5/0.25, each of one "
            f"number or one for each of {channels} channels, deviations above 0"
        )
        yield key, normalise, expected


def augmentation(run: Entries) -> Iterator[Wrong]:
    """Find transforms that do not suit the data, or the privacy unit."""
    names = run.config.training.transforms
    if not names:
        return
    from fcl_flower.data.transforms import IMAGES, TRANSFORMS

    key = "training.augment"
    for name in names:
        TRANSFORMS[name]  # refuses an unknown name
        if name in IMAGES and run.spec.modality != "images":
            yield key, name, f"a callable of your own for {run.spec.modality} data"
        if name not in IMAGES and run.config.privacy.unit == "example":
            why = "with privacy.unit 'example', as another may mix examples"
            yield key, name, f"some of {', '.join(IMAGES)} {why}"


def secure_aggregation(run: Entries) -> Iterator[Wrong]:
    """Find settings that do not go with masks over a sum."""
    config, section = run.config, run.config.federation
    if not section.secure_aggregation:
        return
    key, clients = "federation.secure_aggregation", config.scenario.clients
    in_a_round = max(1, round(clients * section.client_fraction))
    why = ""
    if config.asynchronous.enabled:
        why = "in an asynchronous run, which aggregates each update by itself"
    elif config.strategy.local_only:
        why = "with strategy.local_only, as clients send nothing"
    elif clients > 0 and in_a_round < LEAST_SUMMANDS:
        why = (
            f"with {in_a_round} clients in a round, as a sum of fewer than "
            f"{LEAST_SUMMANDS} shows each client the other's update"
        )
    if why:
        yield key, True, f"false {why}"
    most = round(section.secure_threshold - 1 + MOST_LOST, 9)
    if section.secure_collusion > most:
        yield (
            "federation.secure_collusion",
            section.secure_collusion,
            f"at most {most:g} with federation.secure_threshold "
            f"{section.secure_threshold:g}, as at most {MOST_LOST:g} of the clients "
            "may collude or drop out",
        )
    if section.wire_dtype in LEVELS:
        why = "with secure aggregation, whose sums are of fixed point"
        expected = f"float32, float16 or bfloat16 {why}"
        yield "federation.wire_dtype", section.wire_dtype, expected
    why = "with secure aggregation, as the server sees no single update"
    yield from config.must_be(f"{SINGLE_UPDATES} federation.weighting", why)


def scenario(run: Entries) -> Iterator[Wrong]:
    """Find settings that the scenario does not allow."""
    config, hidden = run.config, run.scenario_entry.hidden
    scope = f"for scenario {config.scenario.name}, "
    if hidden:
        why = "in which clients meet concepts by rounds"
        yield from config.must_be("asynchronous.enabled", scope + why)
        keys = "federation.rounds_by_task federation.patience"
        yield from config.must_be(keys, scope + "whose tasks are hidden")
        why = "whose concepts share out all classes"
        yield from config.must_be("scenario.classes_per_task", scope + why)
    if not run.scenario_entry.incremental:
        keys, why = "data.public_fraction data.public_dataset", "not class-incremental"
        yield from config.must_be(keys, f"{scope}which is {why}")
    if (public := config.data.public_dataset) in config.data.names:
        yield "data.public_dataset", public, "a data set that no client learns"
    if public:
        why = "beside data.public_dataset, which the server has instead"
        yield from config.must_be("data.public_fraction", why)
    if hidden or run.spec.local_data:
        why = scope + "whose tasks are not shared out beforehand"
        yield from config.must_be("scenario.joint", why)
    one_at_a_time = config.scenario.params.get("mean_duration", 1) != 0
    revealed = bool(config.scenario.params.get("reveal_ids", False))
    if revealed and not (hidden and one_at_a_time):
        expected = "it with hidden concepts of which a client has one at a time"
        yield "scenario.reveal_ids", True, expected
    tasks, listed = config.scenario.tasks, config.federation.listed_rounds
    text = config.federation.rounds_by_task
    if text and (not all(listed) or not 0 < len(listed) <= tasks):
        expected = f"whole numbers above 0 for up to {tasks} tasks, separated by commas"
        yield "federation.rounds_by_task", text, expected


def joining(run: Entries) -> Iterator[Wrong]:
    """Find lists of joining rounds, or of tasks sat out, that do not suit the run."""
    config, section = run.config, run.config.scenario
    joined, left_out = section.joined_after, section.tasks_sat_out
    clients, tasks = section.clients, section.tasks
    listed = config.federation.listed_rounds
    total = sum(listed) + (tasks - len(listed)) * config.federation.rounds_per_task
    if section.joined and (
        not joined
        or len(joined) != clients
        or list(joined) != sorted(joined)
        or not joined[0] == 0 <= joined[-1] < total
    ):
        yield (
            "scenario.joined",
            section.joined,
            f"a number for each of scenario.clients ({clients}), ascending from 0, all "
            f"below the {total} rounds of the run",
        )
    learners_lost = Counter(task for _, task in left_out)
    if section.sat_out and (
        not left_out
        or any(client >= clients or task >= tasks for client, task in left_out)
        or max(learners_lost.values()) >= clients
    ):
        yield (
            "scenario.sat_out",
            section.sat_out,
            f"pairs of a client below {clients} and a task below {tasks}, such as "
            "'2:3', separated by commas, and a client that learns each task",
        )


def heads(run: Entries) -> Iterator[Wrong]:
    """Find heads and masks of logits that do not suit the scenario."""
    config, entry, model = run.config, run.scenario_entry, run.config.model
    name, head = config.scenario.name, model.head
    if entry.single and head != "single":
        yield "model.head", head, f"'single' for scenario {name}, {entry.single}"
    if head != "single":
        why = "with a head for each task, which has no other labels"
        yield from config.must_be("model.mask_logits", why)
    if entry.single and not entry.hidden:
        why = f"for scenario {name}, in which the task of a test is not known"
        yield from config.must_be("model.mask_logits", why)


def growing_head(run: Entries) -> Iterator[Wrong]:
    """Find a head that cannot grow with the classes."""
    config, classes, why = run.config, run.config.data.classes, ""
    if not run.spec.names_classes:
        grows = "but for a single head of local data that grows with the classes"
        yield from config.must_be("model.places", grows)
    if not config.model.growing_head:
        return
    if config.scenario.joint:
        why = "with scenario.joint, by which all classes are there from the start"
    elif run.spec.names_classes and config.model.head != "single":
        why = "with a head for each task, which has its own classes"
    elif not (run.spec.names_classes or run.scenario_entry.incremental):
        why = "in which clients do not meet new classes together"
        why = f"for scenario {config.scenario.name}, {why}"
    if why:
        yield "model.growing_head", True, f"false {why}"
    if run.spec.names_classes and len(classes) > config.model.places:
        expected = f"at least the {len(classes)} classes"
        yield "model.places", config.model.places, expected


def instructions(run: Entries) -> Iterator[Wrong]:
    """Find settings of classes, which a language model does not tell apart."""
    config, name = run.config, run.config.strategy.name
    if run.spec.modality != "instructions":
        if run.algorithm.models == ("causal-lm",):
            why = f"for {name}, which tunes a language model"
            yield "model.name", config.model.name, f"'causal-lm' {why}"
        yield from config.must_be("federation.measure", "but for instructions")
        return
    head = config.model.head
    why = "whose labels are tokens"
    if not run.algorithm.token_labels:
        able = [n for n, a in algorithms().items() if a.token_labels]
        yield "strategy.name", name, f"one of {', '.join(able)} for data {why}"
    if head != "single":
        yield "model.head", head, f"'single' for data {why}"
    listed, sets = config.federation.measures, len(config.data.names)
    if len(listed) not in (1, sets) or not {*listed} <= {*ANSWER_MEASURES}:
        expected = f"one of {', '.join(ANSWER_MEASURES)}"
        if sets > 1:
            expected += f", or one for each of {sets} data sets, separated by commas"
        yield "federation.measure", config.federation.measure, expected
    keys = "model.mask_loss model.mask_logits model.growing_head training.balance "
    keys += "training.augment federation.per_class"
    yield from config.must_be(keys, f"for data {why}, not classes")
    if config.privacy.unit == "example":
        yield "privacy.unit", "example", f"'none' or 'client' for data {why}"
    if config.federation.attack == "label-flip":
        yield "federation.attack", "label-flip", f"another for data {why}"


def asynchronous(run: Entries) -> Iterator[Wrong]:
    """Find settings that need rounds, in a run without rounds."""
    if not run.config.asynchronous.enabled:
        return
    for keys, why in (
        ("federation.evaluate_every", "whose clients are tested as their tasks end"),
        (
            "scenario.sat_out federation.patience",
            "whose clients go through their tasks at their own pace",
        ),
        (SINGLE_UPDATES, "which takes one update at a time"),
    ):
        yield from run.config.must_be(keys, f"in an asynchronous run, {why}")
    if run.spec.names_classes:
        why = "in an asynchronous run, in which no task begins for all"
        yield "data.class_names", run.config.data.class_names, f"{NO_NAMES}, {why}"


def privacy(run: Entries) -> Iterator[Wrong]:
    """Find settings that a run with privacy cannot keep to."""
    config, unit = run.config, run.config.privacy.unit
    if not config.privacy.scores:
        why = "by which clients report no accuracies"
        yield from config.must_be(
            "federation.per_class", f"with privacy.scores false, {why}"
        )
    if config.federation.client_fraction < 1:
        why = "with federation.client_fraction below 1, by which clients miss rounds"
        yield from config.must_be("federation.patience", why)
    if unit == "none":
        return
    why = f"with privacy.unit {unit!r}, by which clients do not report their training"
    yield from config.must_be("training.count_multiply_adds federation.patience", why)
    if run.spec.names_classes:
        why = f"with privacy.unit {unit!r}, as clients would report theirs"
        yield "data.class_names", config.data.class_names, f"{NO_NAMES}, {why}"


# ---- local data


def check_local_data(config: RunConfig) -> None:
    """Refuse a run over local data without the settings that no data set gives."""
    for key, value, expected in _left_open(config):
        expected += f", for scenario {config.scenario.name}"
        raise config_error(key, value, expected)


def _left_open(config: RunConfig) -> Iterator[Wrong]:
    section, name = config.data, config.model.name
    if section.datasets:
        yield "data.datasets", section.datasets, "none"
    if not name:
        yield "model.name", name, "the name of a network that suits the data"
    entry = MODELS[name]
    features = config.model.num_features
    counted = entry.modality in ("tabular", "text") and not entry.encoder
    columns = section.column_names if entry.modality == "tabular" else ()
    if counted and not (features or columns):
        expected = "the numbers in a sample, or in a word vector"
        yield "model.num_features", features, expected
    if features and not counted:
        yield "model.num_features", features, "0"
    if section.public_path and entry.modality == "text" and not entry.encoder:
        expected = "none with word vectors, which only clients have"
        yield "data.public_path", section.public_path, expected
    names, classes = section.classes, config.scenario.classes_per_task
    if config.model.head == "single":
        tokens = entry.modality == "instructions"
        least = 1 if config.model.growing_head or tokens else 2
        if names and (len({*names}) < len(names) or len(names) < least):
            yield (
                "data.class_names",
                section.class_names,
                "different names of all classes, for a single head to number them "
                "alike",
            )
        return
    if names:
        yield "data.class_names", section.class_names, "none but with a single head"
    if classes < 2:
        expected = "at least 2, the most classes that any task has"
        yield "scenario.classes_per_task", classes, expected


# ---- the network


def _of_network(run: Entries, network: "MultiHeadModel") -> Iterator[Wrong]:
    from torch.nn.modules.batchnorm import _BatchNorm

    from fcl_flower.models.frozen_images import FrozenImages
    from fcl_flower.models.normalisation import FIXED

    name, smallest = run.config.model.name, network.smallest_batch
    batch, unit = run.config.training.batch_size, run.config.privacy.unit
    if batch < smallest:
        why = "which normalises by the statistics of a batch"
        yield (
            "training.batch_size",
            batch,
            f"at least {smallest} for model {name}, {why}",
        )
    mixes = any(isinstance(part, _BatchNorm) for part in network.modules())
    if unit == "example" and mixes:
        why = "whose batch normalisation gives no example a gradient of its own"
        yield "privacy.unit", unit, f"another for model {name}, {why}"
    if isinstance(network.body, FrozenImages) and network.normalisation != FIXED:
        expected = f"'fixed' for model {name}, whose filters never change"
        yield "data.normalise", run.config.data.normalise, expected
