"""What does not go together: settings of a run, and what an algorithm needs of it."""

from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.sections import LEAST_SUMMANDS
from fcl_flower.core.errors import refuse
from fcl_flower.data.scenarios.plan import Scenario
from fcl_flower.data.scenarios.registry import scenario_entry
from fcl_flower.models.registry import model_entry
from fcl_flower.setup.resolved_run import ResolvedRun


def has_local_data(config: RunConfig) -> bool:
    """Return whether each client of a run has data of its own."""
    name = config.scenario.name
    return bool(name) and scenario_entry(name).local_data


def check_choices(run: ResolvedRun) -> None:
    """Refuse settings that do not go together, whatever the data are.

    Raises:
        ConfigError: one sentence names the setting, and what was expected.
    """
    config, scenario, name = run.config, run.scenario, run.config.scenario.name
    trains_on_server = bool(run.algorithm.trainer)
    reveals = bool(run.config.scenario.params.get("reveal_ids", False))
    one_at_a_time = config.scenario.params.get("mean_duration", 1) != 0
    secure, clients = config.federation.secure_aggregation, config.scenario.clients
    dtype = config.federation.wire_dtype
    by_levels = dtype in ("int8", "int4", "ternary")
    sends = run.algorithm.federated and not config.strategy.local_only
    in_a_round = max(1, round(clients * config.federation.client_fraction))
    for wrong, key, value, expected in (
        *_without_validation(run),
        (
            config.federation.per_class and not config.privacy.scores,
            "federation.per_class",
            True,
            "false with privacy.scores false, by which no client is asked how well it "
            "does",
        ),
        (
            config.training.count_multiply_adds and config.privacy.unit != "none",
            "training.count_multiply_adds",
            True,
            f"false with privacy.unit {config.privacy.unit!r}, by which a client tells "
            "nothing of its training",
        ),
        (
            config.data.public_path and not (scenario.local_data and trains_on_server),
            "data.public_path",
            config.data.public_path,
            "none, but for a strategy that trains on the server, with local data",
        ),
        (
            config.data.class_names and not scenario.local_data,
            "data.class_names",
            config.data.class_names,
            "none, since the data sets name their classes",
        ),
        (
            scenario.single and config.model.head != "single",
            "model.head",
            config.model.head,
            f"'single' for scenario {name}, {scenario.single}",
        ),
        (
            scenario.hidden and config.asynchronous.enabled,
            "asynchronous.enabled",
            True,
            f"false for scenario {name}, in which clients meet concepts by rounds",
        ),
        (
            config.federation.evaluate_every and config.asynchronous.enabled,
            "federation.evaluate_every",
            config.federation.evaluate_every,
            "0 in an asynchronous run, whose clients are tested at the ends of their "
            "tasks",
        ),
        (
            by_levels and secure,
            "federation.wire_dtype",
            dtype,
            "float32, float16 or bfloat16 with secure aggregation, whose sums are of "
            "fixed point",
        ),
        (
            by_levels and sends and not _rounds(run),
            "federation.wire_dtype",
            dtype,
            f"float32, float16 or bfloat16 for {config.strategy.name}, which sends no "
            "models that could be rounded",
        ),
        (
            dtype in ("int4", "ternary")
            and config.federation.wire_compression == "none",
            "federation.wire_dtype",
            dtype,
            "int8, or federation.wire_compression 'zstd', by which fewer levels are "
            "fewer bytes",
        ),
        (
            secure and config.asynchronous.enabled,
            "federation.secure_aggregation",
            True,
            "false in an asynchronous run, which takes up each update by itself",
        ),
        (
            secure and config.strategy.local_only,
            "federation.secure_aggregation",
            True,
            "false with strategy.local_only, by which nothing is sent",
        ),
        (
            secure and clients > 0 and in_a_round < LEAST_SUMMANDS,
            "federation.secure_aggregation",
            True,
            f"false with {in_a_round} clients in a round, as in a sum of fewer than "
            f"{LEAST_SUMMANDS} each knows what the other has added",
        ),
        *(
            (
                secure and getattr(config.federation, key) != usual,
                f"federation.{key}",
                getattr(config.federation, key),
                f"{usual!r} with secure aggregation, as nobody sees single updates",
            )
            for key, usual in (
                ("aggregation", "mean"),
                ("clip_to_median", 0.0),
                ("weighting", "examples"),
                ("examples_limit", 0.0),
            )
        ),
        (
            reveals and not (scenario.hidden and one_at_a_time),
            "scenario.reveal_ids",
            True,
            "it with hidden concepts of which a client has one at a time",
        ),
        (
            scenario.hidden and not run.algorithm.returns_to_tasks,
            "scenario.name",
            name,
            f"one whose tasks do not come again, for {config.strategy.name}, to which "
            "each would be another",
        ),
        (
            config.scenario.joint and (scenario.local_data or scenario.hidden),
            "scenario.joint",
            True,
            f"false for scenario {name}, whose tasks are not shared out beforehand",
        ),
        (
            config.model.mask_logits and config.model.head != "single",
            "model.mask_logits",
            True,
            "false with a head for each task, which has no other labels",
        ),
        (
            config.model.mask_logits and scenario.incremental,
            "model.mask_logits",
            True,
            f"false for scenario {name}, in which the task of a test is not known",
        ),
        (
            config.model.mask_loss and not config.model.mask_logits,
            "model.mask_loss",
            True,
            "false without model.mask_logits, by which tests know their labels",
        ),
        (
            config.model.mask_loss and trains_on_server,
            "model.mask_loss",
            True,
            f"false for {config.strategy.name}, which trains on the server on all "
            "classes",
        ),
        (
            config.model.mask_loss and run.algorithm.needs_single_head,
            "model.mask_loss",
            True,
            f"false for {config.strategy.name}, whose losses are over classes of old "
            "tasks, too",
        ),
        (
            config.model.growing_head and not scenario.incremental,
            "model.growing_head",
            True,
            f"false for scenario {name}, in which clients do not meet new classes "
            "together",
        ),
        (
            config.model.growing_head and config.scenario.joint,
            "model.growing_head",
            True,
            "false with scenario.joint, by which all classes are there from the start",
        ),
        (
            config.model.growing_head
            and trains_on_server
            and not run.algorithm.load_server().needs_classes,
            "model.growing_head",
            True,
            f"false for {config.strategy.name}, which trains on the server on all "
            "classes",
        ),
        (
            config.data.word_vectors and (run.modality != "text" or run.model.encoder),
            "data.word_vectors",
            config.data.word_vectors,
            f"none, as model {config.model.name} needs none",
        ),
    ):
        if wrong:
            raise refuse(key, value, expected)


def _rounds(run: ResolvedRun) -> bool:
    """Return whether the algorithm sends anything that may be rounded to levels."""
    server = run.algorithm.load_server()
    return bool(server.kinds("model") or server.kinds("rounded"))


def _without_validation(run: ResolvedRun) -> list[tuple[bool, str, Scalar, str]]:
    """Return what would silently do nothing without validation samples.

    Local data may bring some of their own.
    """
    config, scenario = run.config, run.scenario
    none = not config.scenario.valid_fraction and not scenario.local_data
    needs, training = "scenario.valid_fraction 0", config.training
    blind = run.hidden_tasks
    return [
        *(
            (
                none and value > 0,
                f"training.{key}",
                value,
                f"0 with {needs}, as nothing tells when training stagnates",
            )
            for key, value in (
                ("lr_patience", training.lr_patience),
                ("early_stopping_patience", training.early_stopping_patience),
            )
        ),
        (
            none and (blind or run.params.needs_validation),
            "scenario.valid_fraction",
            config.scenario.valid_fraction,
            "above 0 for hidden concepts, which a client tells by validation samples"
            if blind
            else f"above 0 for {config.strategy.name} with these parameters, which "
            "decides by validation samples",
        ),
    ]


def check_local_data(config: RunConfig) -> None:
    """Refuse a run over local data that leaves open what cannot be looked up.

    Raises:
        ConfigError: one sentence names the setting, and what was expected.
    """
    entry = model_entry(config.model.name) if config.model.name else None
    modality = "" if entry is None else entry.modality
    encoder = entry is not None and entry.encoder != ""
    counted = modality in ("tabular", "text") and not encoder
    single, names = config.model.head == "single", config.data.classes
    features, data = config.model.num_features, config.data
    for wrong, key, value, expected in (
        (data.datasets, "data.datasets", data.datasets, "none"),
        (
            not modality,
            "model.name",
            config.model.name,
            "the name of a network that suits the data",
        ),
        (
            counted and not features,
            "model.num_features",
            features,
            "the numbers in a sample, or in a word vector",
        ),
        (not counted and features, "model.num_features", features, "0"),
        (
            data.public_path and modality == "text" and not encoder,
            "data.public_path",
            data.public_path,
            "none with word vectors, which only clients have",
        ),
        (
            names and not single,
            "data.class_names",
            data.class_names,
            "none but with a single head",
        ),
        (
            single and (len(names) < 2 or len({*names}) < len(names)),
            "data.class_names",
            data.class_names,
            "different names of all classes, for a single head to number them alike",
        ),
        (
            not single and config.scenario.classes_per_task < 2,
            "scenario.classes_per_task",
            config.scenario.classes_per_task,
            "at least 2, the most classes that any task has",
        ),
    ):
        if wrong:
            raise refuse(key, value, f"{expected}, for scenario {config.scenario.name}")


def check_single_head(run: ResolvedRun, plan: Scenario) -> None:
    """Refuse tasks that are trained on together, but have a head each or no identity.

    Raises:
        ConfigError: a client trains one head for several tasks together, and the
            run does not allow it.
    """
    name, config = run.config.strategy.name, run.config
    if not (config.scenario.joint or run.algorithm.needs_single_head):
        return
    together = f"for {name}, which trains one head for several tasks together"
    if config.model.head != "single":
        raise refuse("model.head", config.model.head, f"'single' {together}")
    if run.hidden_tasks:
        raise refuse(
            "scenario.name", plan.name, f"one whose tasks are told apart, {together}"
        )


def check_classes_known(run: ResolvedRun, plan: Scenario) -> None:
    """Refuse tasks of which only their clients know what is in them.

    Raises:
        ConfigError: the server has to know which classes a task brings, and cannot.
    """
    if plan.local_data:
        expected = f"one whose classes are known, for {run.config.strategy.name}"
        raise refuse("scenario.name", plan.name, expected)
