"""What does not go together: settings of a run, and what an algorithm needs of it.

Ranges stand in the sections, and what two settings alone decide in `RunConfig`. The
rest is here, a generator for each subject: of what is wrong it yields the setting, its
value and what was expected. The first is what a user is told.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from fcl_flower.algorithms.base import (
    ClientLearner,
    ServerQueries,
    ServerStrategy,
    SumsUpdates,
    adds_up,
)
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.sections import LEAST_SUMMANDS, MOST_LOST
from fcl_flower.core.errors import config_error
from fcl_flower.models.registry import model_entry
from fcl_flower.setup.entries import Entries

if TYPE_CHECKING:
    from fcl_flower.models.heads import MultiHeadModel

Wrong: TypeAlias = tuple[str, object, str]
"""Key, value and expectation, as `core.errors.config_error` takes them."""


def check(run: Entries) -> None:
    """Refuse settings that do not go together, whatever is in the data."""
    for subject in (
        validation,
        measurements,
        data,
        wire,
        secure_aggregation,
        scenario,
        rounds,
        joining,
        sitting_out,
        patience,
        heads,
        masks,
        growing_head,
        privacy,
        balance,
        augmentation,
    ):
        _refuse_first(subject(run))


def check_strategy(run: Entries, strategy: ServerStrategy[Any]) -> None:
    """Refuse settings that do not go with what a server side does."""
    for subject in (queries, asynchronous, attack, aggregation):
        _refuse_first(subject(run, strategy))
    if run.config.federation.secure_aggregation:
        _refuse_first(sums(run, strategy))
        assert isinstance(strategy, SumsUpdates)
        strategy.check_summable()


def check_learner(run: Entries, learner: type[ClientLearner[Any]]) -> None:
    """Refuse settings that a client side does not obey."""
    training, name = run.config.training, run.config.strategy.name
    if training.transforms and not learner.augments:
        expected = f"none for {name}, whose clients meet all samples as they are"
        raise config_error("training.augment", training.augment, expected)


def check_network(run: Entries, network: "MultiHeadModel") -> None:
    """Refuse a batch, a privacy unit or pixels that a network does not allow."""
    _refuse_first(batches(run, network))
    _refuse_first(frozen_filters(run, network))


def _refuse_first(found: Iterable[Wrong]) -> None:
    for key, value, expected in found:
        raise config_error(key, value, expected)


# ---- of settings


def validation(run: Entries) -> Iterator[Wrong]:
    """Find what silently does nothing without validation samples.

    Local data may bring some of their own.
    """
    config, training = run.config, run.config.training
    if config.scenario.valid_fraction or run.spec.local_data:
        return
    for key in ("lr_patience", "early_stopping_patience"):
        value = getattr(training, key)
        if value > 0:
            yield (
                f"training.{key}",
                value,
                "0 with scenario.valid_fraction 0, as nothing tells when training "
                "stagnates",
            )
    if run.spec.hidden_tasks:
        why = "hidden concepts, which a client tells by validation samples"
    elif run.params.needs_validation:
        name = config.strategy.name
        why = f"{name} with these parameters, which decides by validation samples"
    else:
        return
    yield (
        "scenario.valid_fraction",
        config.scenario.valid_fraction,
        f"above 0 for {why}",
    )


def measurements(run: Entries) -> Iterator[Wrong]:
    """Find measurements that privacy forbids, or that a run cannot have."""
    config = run.config
    if config.federation.per_class and not config.privacy.scores:
        yield (
            "federation.per_class",
            True,
            "false with privacy.scores false, by which no client is asked how well it "
            "does",
        )
    if config.training.count_multiply_adds and config.privacy.unit != "none":
        yield (
            "training.count_multiply_adds",
            True,
            f"false with privacy.unit {config.privacy.unit!r}, by which a client tells "
            "nothing of its training",
        )


def data(run: Entries) -> Iterator[Wrong]:
    """Find settings of data that the run has no use for."""
    section, local_data = run.config.data, run.spec.local_data
    if section.public_path and not (local_data and run.algorithm.trainer):
        yield (
            "data.public_path",
            section.public_path,
            "none, but for a strategy that trains on the server, with local data",
        )
    if section.class_names and not local_data:
        yield (
            "data.class_names",
            section.class_names,
            "none, since the data sets name their classes",
        )
    for key, value, blank, why in (
        ("data.labels", section.labels, "refuse", "are as their data sets have them"),
        ("data.columns", section.columns, "", "are those of the data sets"),
    ):
        if value != blank and not local_data:
            yield key, value, f"{blank!r}, since they {why}"
    columns, features = section.column_names, run.config.model.num_features
    if columns and (run.spec.modality != "tabular" or len(columns) != features):
        expected = "none, but for tables"
        if run.spec.modality == "tabular":
            expected = f"the names of {features} columns, as model.num_features says"
        yield "data.columns", section.columns, expected
    if section.word_vectors and (
        run.spec.modality != "text" or run.model_entry.encoder
    ):
        yield (
            "data.word_vectors",
            section.word_vectors,
            f"none, as model {run.config.model.name} needs none",
        )
    yield from pixels(run)


def pixels(run: Entries) -> Iterator[Wrong]:
    """Find a normalisation that no image has."""
    section, shape = run.config.data, run.spec.input_shape
    key, given = "data.normalise", section.normalise
    if given in ("model", "fixed"):
        return
    if run.spec.modality != "images":
        yield key, given, f"'model', as {run.spec.modality} data have no pixels"
    if given == "data":
        for hidden, value in (
            ("privacy.unit", run.config.privacy.unit),
            ("federation.secure_aggregation", run.config.federation.secure_aggregation),
        ):
            if value not in ("none", False):
                why = "as the server would see sums of each client's pixels"
                yield key, given, f"another with {hidden} {value!r}, {why}"
        return
    found = section.pixel_statistics
    if found is None or not {len(values) for values in found} <= {1, shape[0]}:
        yield (
            key,
            given,
            "model, fixed, data, or mean and deviation such as 0.5/0.25, each of one "
            f"number or one for each of {shape[0]} channels, deviations above 0",
        )


def augmentation(run: Entries) -> Iterator[Wrong]:
    """Find transforms that do not suit the data, or what hides an example."""
    names = run.config.training.transforms
    if not names:
        return
    from fcl_flower.data.transforms import IMAGES, TRANSFORMS

    key = "training.augment"
    for name in names:
        TRANSFORMS[name]  # which refuses what is unknown
        if name in IMAGES and run.spec.modality != "images":
            yield key, name, f"a callable of your own for {run.spec.modality} data"
        if name not in IMAGES and run.config.privacy.unit == "example":
            yield (
                key,
                name,
                f"some of {', '.join(IMAGES)} with privacy.unit 'example', as another "
                "may mix examples",
            )


def wire(run: Entries) -> Iterator[Wrong]:
    """Find ways of rounding that the run's messages do not allow."""
    config, section = run.config, run.config.federation
    dtype = section.wire_dtype
    if dtype not in ("int8", "int4", "ternary"):
        return
    if section.secure_aggregation:
        yield (
            "federation.wire_dtype",
            dtype,
            "float32, float16 or bfloat16 with secure aggregation, whose sums are of "
            "fixed point",
        )
    server = run.algorithm.load_server()
    sends = run.algorithm.federated and not config.strategy.local_only
    if sends and not (server.kinds("model") or server.kinds("rounded")):
        yield (
            "federation.wire_dtype",
            dtype,
            f"float32, float16 or bfloat16 for {config.strategy.name}, which sends no "
            "models that could be rounded",
        )


def secure_aggregation(run: Entries) -> Iterator[Wrong]:
    """Find what masks over a sum do not allow."""
    config, section = run.config, run.config.federation
    if not section.secure_aggregation:
        return
    key = "federation.secure_aggregation"
    if config.asynchronous.enabled:
        why = "in an asynchronous run, which takes up each update by itself"
        yield key, True, f"false {why}"
    if config.strategy.local_only:
        yield key, True, "false with strategy.local_only, by which nothing is sent"
    clients = config.scenario.clients
    in_a_round = max(1, round(clients * section.client_fraction))
    if clients > 0 and in_a_round < LEAST_SUMMANDS:
        yield (
            key,
            True,
            f"false with {in_a_round} clients in a round, as in a sum of fewer than "
            f"{LEAST_SUMMANDS} each knows what the other has added",
        )
    most = round(section.secure_threshold - 1 + MOST_LOST, 9)
    if section.secure_collusion > most:
        yield (
            "federation.secure_collusion",
            section.secure_collusion,
            f"at most {most:g} with federation.secure_threshold "
            f"{section.secure_threshold:g}, as those who collude and those who drop "
            f"out may be {MOST_LOST:g} of the clients",
        )
    for name, usual in (
        ("aggregation", "mean"),
        ("clip_to_median", 0.0),
        ("weighting", "examples"),
        ("examples_limit", 0.0),
    ):
        value = getattr(section, name)
        if value != usual:
            why = "with secure aggregation, as nobody sees single updates"
            yield f"federation.{name}", value, f"{usual!r} {why}"


def scenario(run: Entries) -> Iterator[Wrong]:
    """Find what a scenario does not offer to the run, or the run to it."""
    config, entry, name = run.config, run.scenario_entry, run.config.scenario.name
    if entry.hidden and config.asynchronous.enabled:
        yield (
            "asynchronous.enabled",
            True,
            f"false for scenario {name}, in which clients meet concepts by rounds",
        )
    if config.federation.evaluate_every and config.asynchronous.enabled:
        yield (
            "federation.evaluate_every",
            config.federation.evaluate_every,
            "0 in an asynchronous run, whose clients are tested at the ends of their "
            "tasks",
        )
    reveals_ids = bool(config.scenario.params.get("reveal_ids", False))
    one_at_a_time = config.scenario.params.get("mean_duration", 1) != 0
    if reveals_ids and not (entry.hidden and one_at_a_time):
        yield (
            "scenario.reveal_ids",
            True,
            "it with hidden concepts of which a client has one at a time",
        )
    if entry.hidden and not run.algorithm.returns_to_tasks:
        yield (
            "scenario.name",
            name,
            f"one whose tasks do not come again, for {config.strategy.name}, to which "
            "each would be another",
        )
    if config.scenario.joint and (run.spec.local_data or entry.hidden):
        yield (
            "scenario.joint",
            True,
            f"false for scenario {name}, whose tasks are not shared out beforehand",
        )


def rounds(run: Entries) -> Iterator[Wrong]:
    """Find lists of rounds that are none."""
    config, section = run.config, run.config.federation
    text, listed = section.rounds_by_task, section.listed_rounds
    if text and (not all(listed) or not 0 < len(listed) <= config.scenario.tasks):
        expected = (
            f"whole numbers above 0 for up to {config.scenario.tasks} tasks, separated "
            "by commas"
        )
        yield "federation.rounds_by_task", text, expected
    if text and run.scenario_entry.hidden:
        expected = f"none for scenario {config.scenario.name}, whose tasks are hidden"
        yield "federation.rounds_by_task", text, expected


def joining(run: Entries) -> Iterator[Wrong]:
    """Find clients that cannot join later."""
    config, text = run.config, run.config.scenario.joined
    if not text:
        return
    key, found = "scenario.joined", config.scenario.joined_after
    clients, tasks = config.scenario.clients, config.scenario.tasks
    listed = config.federation.listed_rounds
    total = sum(listed) + (tasks - len(listed)) * config.federation.rounds_per_task
    if (
        len(found) != clients
        or list(found) != sorted(found)
        or not found[0] == 0 <= found[-1] < total
    ):
        yield (
            key,
            text,
            f"0 for the first, and for each of scenario.clients ({clients}) no fewer "
            f"than for the one before, all below the {total} rounds of the run",
        )
    yield from _shared_out(run, key, text)


def sitting_out(run: Entries) -> Iterator[Wrong]:
    """Find tasks that clients cannot sit out."""
    config, text = run.config, run.config.scenario.sat_out
    if not text:
        return
    key, found = "scenario.sat_out", config.scenario.tasks_sat_out
    clients, tasks = config.scenario.clients, config.scenario.tasks
    out = Counter(task for _, task in found)
    if (
        not found
        or any(client >= clients or task >= tasks for client, task in found)
        or max(out.values()) >= clients
    ):
        yield (
            key,
            text,
            f"pairs of a client below {clients} and a task below {tasks}, such as "
            "'2:3', separated by commas, and a client that learns each task",
        )
    yield from _shared_out(run, key, text)
    if config.asynchronous.enabled:
        why = "in which each client goes through its tasks at its own pace"
        yield key, text, f"none in an asynchronous run, {why}"


def _shared_out(run: Entries, key: str, text: str) -> Iterator[Wrong]:
    if not run.spec.local_data:
        why = "whose samples are shared out beforehand"
        yield key, text, f"none for scenario {run.config.scenario.name}, {why}"


def patience(run: Entries) -> Iterator[Wrong]:
    """Find runs whose tasks cannot end before their last round."""
    config, value = run.config, run.config.federation.patience
    if not value:
        return
    if not run.algorithm.validates:
        why = f"for {config.strategy.name}, whose clients measure no validation loss"
    elif config.privacy.unit != "none":
        why = f"with privacy.unit {config.privacy.unit!r}, by which clients tell none"
    elif not (config.scenario.valid_fraction or run.spec.local_data):
        why = "with scenario.valid_fraction 0, without which there is none"
    elif config.asynchronous.enabled:
        why = "in an asynchronous run, whose clients end their tasks by themselves"
    elif run.scenario_entry.hidden:
        why = f"for scenario {config.scenario.name}, whose tasks have no last round"
    elif config.federation.client_fraction < 1:
        why = (
            "with federation.client_fraction below 1, by which some clients would not "
            "train in the round that ends a task"
        )
    else:
        return
    yield "federation.patience", value, f"0 {why}"


def heads(run: Entries) -> Iterator[Wrong]:
    """Find heads that do not suit the scenario or the strategy."""
    config, entry, head = run.config, run.scenario_entry, run.config.model.head
    strategy, name = config.strategy.name, config.scenario.name
    if entry.single and head != "single":
        yield "model.head", head, f"'single' for scenario {name}, {entry.single}"
    if config.scenario.joint or run.algorithm.needs_single_head:
        together = f"for {strategy}, which trains one head for several tasks together"
        if head != "single":
            yield "model.head", head, f"'single' {together}"
        if run.spec.hidden_tasks:
            expected = f"one whose tasks are told apart, {together}"
            yield "scenario.name", name, expected
    if run.algorithm.load_server().needs_classes and run.spec.local_data:
        yield "scenario.name", name, f"one whose classes are known, for {strategy}"


def masks(run: Entries) -> Iterator[Wrong]:
    """Find logits that cannot be masked."""
    config, section = run.config, run.config.model
    strategy = config.strategy.name
    if section.mask_logits and section.head != "single":
        why = "with a head for each task, which has no other labels"
        yield "model.mask_logits", True, f"false {why}"
    if section.mask_logits and run.scenario_entry.incremental:
        why = "in which the task of a test is not known"
        expected = f"false for scenario {config.scenario.name}, {why}"
        yield "model.mask_logits", True, expected
    if section.mask_loss and not section.mask_logits:
        why = "without model.mask_logits, by which tests know their labels"
        yield "model.mask_loss", True, f"false {why}"
    if section.mask_loss and run.algorithm.trainer:
        why = "which trains on the server on all classes"
        yield "model.mask_loss", True, f"false for {strategy}, {why}"
    if section.mask_loss and run.algorithm.needs_single_head:
        why = "whose losses are over classes of old tasks, too"
        yield "model.mask_loss", True, f"false for {strategy}, {why}"


def growing_head(run: Entries) -> Iterator[Wrong]:
    """Find a head that cannot grow with the classes."""
    config, key = run.config, "model.growing_head"
    if not config.model.growing_head:
        return
    if run.spec.names_classes:
        yield from _named_classes(run)
    elif not run.scenario_entry.incremental:
        why = "in which clients do not meet new classes together"
        yield key, True, f"false for scenario {config.scenario.name}, {why}"
    if config.scenario.joint:
        why = "by which all classes are there from the start"
        yield key, True, f"false with scenario.joint, {why}"
    if run.algorithm.trainer and not run.algorithm.load_server().needs_classes:
        why = "which trains on the server on all classes"
        yield key, True, f"false for {config.strategy.name}, {why}"


def _named_classes(run: Entries) -> Iterator[Wrong]:
    config, key = run.config, "data.class_names"
    given, why = config.data.class_names, ""
    if config.model.head != "single":
        expected = "false with a head for each task, which has its own classes"
        yield "model.growing_head", True, expected
    if config.asynchronous.enabled:
        why = "in an asynchronous run, in which no task begins for all"
    elif config.privacy.unit != "none":
        why = f"with privacy.unit {config.privacy.unit!r}, as clients would tell theirs"
    if why:
        yield key, given, f"the names of all classes, and no growing head, {why}"
    if len(config.data.classes) > config.model.places:
        many = len(config.data.classes)
        yield "model.places", config.model.places, f"at least the {many} classes"


_UNFIT = {
    "client": "whose updates tell more of a client's data than noise on differences "
    "covers",
    "example": "which uses examples by more than the gradients of single ones",
}
"""Why an algorithm without a privacy unit has not got it."""


def privacy(run: Entries) -> Iterator[Wrong]:
    """Find a privacy unit that the run cannot hide: nothing is promised in vain."""
    config, unit = run.config, run.config.privacy.unit
    if unit == "none":
        return
    if config.strategy.local_only or not run.algorithm.federated:
        why = f"{config.title}, whose clients send nothing that they learn"
        yield "privacy.unit", unit, f"'none' for {why}"
    if unit not in run.algorithm.privacy_units:
        why = f"{config.strategy.name}, {_UNFIT[unit]}"
        yield "privacy.unit", unit, f"'none' for {why}"


def balance(run: Entries) -> Iterator[Wrong]:
    """Find a way to balance classes that a strategy's clients do not know."""
    value, name = run.config.training.balance, run.config.strategy.name
    if value == "none":
        return
    known = run.algorithm.load_client().balances
    if value not in known:
        choices = " or ".join(map(repr, ["none", *known]))
        why = "whose clients balance classes in no other way"
        if not known:
            why = "whose clients do not balance classes"
        yield "training.balance", value, f"{choices} for {name}, {why}"


def check_local_data(config: RunConfig) -> None:
    """Refuse a run over local data that leaves open what cannot be looked up."""
    for key, value, expected in _left_open(config):
        raise config_error(
            key, value, f"{expected}, for scenario {config.scenario.name}"
        )


def _left_open(config: RunConfig) -> Iterator[Wrong]:
    section, name = config.data, config.model.name
    entry = model_entry(name) if name else None
    if section.datasets:
        yield "data.datasets", section.datasets, "none"
    if entry is None:
        yield "model.name", name, "the name of a network that suits the data"
        return
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
    if config.model.head != "single":
        if names:
            expected = "none but with a single head"
            yield "data.class_names", section.class_names, expected
        if classes < 2:
            expected = "at least 2, the most classes that any task has"
            yield "scenario.classes_per_task", classes, expected
    elif len({*names}) < len(names) or (
        len(names) == 1 and not config.model.growing_head
    ):
        yield (
            "data.class_names",
            section.class_names,
            "different names of all classes, for a single head to number them alike",
        )


# ---- of a server side


def queries(run: Entries, strategy: ServerStrategy[Any]) -> Iterator[Wrong]:
    """Find questions about the data that a privacy unit hides."""
    unit, name = run.config.privacy.unit, run.config.strategy.name
    if unit != "none" and isinstance(strategy, ServerQueries) and strategy.asks:
        why = "whose server asks clients about their data (strategy.knowledge)"
        yield "privacy.unit", unit, f"'none' for {name} {why}"


def asynchronous(run: Entries, strategy: ServerStrategy[Any]) -> Iterator[Wrong]:
    """Find a strategy that cannot do without rounds."""
    config, name = run.config, run.config.strategy.name
    if config.asynchronous.enabled and not (
        strategy.kinds("mean") or adds_up(strategy)
    ):
        why = "which looks at all updates of a round together"
        yield "asynchronous.enabled", True, f"false for {name}, {why}"


def attack(run: Entries, strategy: ServerStrategy[Any]) -> Iterator[Wrong]:
    """Find an attack on something that clients of a strategy do not send."""
    kind, name = run.config.federation.attack, run.config.strategy.name
    on_models = kind in ("sign-flip", "noise", "scaling", "counts")
    averages = bool(strategy.kinds("mean") or strategy.robust_aggregation)
    key = "federation.attack"
    if kind == "adapters" and not strategy.kinds("shared"):
        why = "whose clients receive no others' adapters"
        yield key, kind, f"another one for {name}, {why}"
    if on_models and strategy.kinds("shared") and not averages:
        why = "whose clients average no models"
        yield key, kind, f"label-flip or adapters for {name}, {why}"
    if on_models and adds_up(strategy):
        yield key, kind, f"label-flip for {name}, whose clients send sums, no model"


def aggregation(run: Entries, strategy: ServerStrategy[Any]) -> Iterator[Wrong]:
    """Find rules for aggregation that a strategy does not follow."""
    section, name = run.config.federation, run.config.strategy.name
    for key, usual in (
        ("aggregation", "mean"),
        ("clip_to_median", 0),
        ("examples_limit", 0),
    ):
        value = getattr(section, key)
        if value == usual:
            continue
        if run.config.asynchronous.enabled:
            why = "in an asynchronous run, which takes one update at a time"
            yield f"federation.{key}", value, f"{usual!r} {why}"
        if key != "examples_limit" and not strategy.robust_aggregation:
            why = f"for {name}, which averages no updates that way"
            yield f"federation.{key}", value, f"{usual!r} {why}"
    if section.weighting != "examples" and adds_up(strategy):
        why = f"for {name}, whose sums count samples"
        yield "federation.weighting", section.weighting, f"'examples' {why}"


def sums(run: Entries, strategy: ServerStrategy[Any]) -> Iterator[Wrong]:
    """Find a strategy that needs more than sums."""
    if not isinstance(strategy, SumsUpdates):
        yield (
            "federation.secure_aggregation",
            True,
            f"false for {run.config.title}, whose server needs other things than sums "
            "over the clients of a round",
        )


# ---- of a network


def batches(run: Entries, network: "MultiHeadModel") -> Iterator[Wrong]:
    """Find what the normalisation of a network does not allow."""
    from torch.nn.modules.batchnorm import _BatchNorm

    name, smallest = run.config.model.name, network.smallest_batch
    if run.config.training.batch_size < smallest:
        yield (
            "training.batch_size",
            run.config.training.batch_size,
            f"at least {smallest} for model {name}, which normalises by the statistics "
            "of a batch",
        )
    mixes = any(isinstance(part, _BatchNorm) for part in network.modules())
    if run.config.privacy.unit == "example" and mixes:
        yield (
            "privacy.unit",
            "example",
            f"another for model {name}, whose batch normalisation gives no example a "
            "gradient of its own",
        )


def frozen_filters(run: Entries, network: "MultiHeadModel") -> Iterator[Wrong]:
    """Find pixels that fixed filters were not made for."""
    from fcl_flower.models.frozen_images import FrozenImages
    from fcl_flower.models.normalisation import FIXED

    if isinstance(network.body, FrozenImages) and network.normalisation != FIXED:
        yield (
            "data.normalise",
            run.config.data.normalise,
            f"'fixed' for model {run.config.model.name}, whose filters never change",
        )
