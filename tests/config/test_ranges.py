"""Numbers are refused beyond their bounds, and nowhere else."""

import pytest

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.run_config import COUNTS, DEFAULTS, RunConfig
from fcl_flower.core.errors import ConfigError

SETTINGS = {
    "[0": """
        scenario.clients scenario.tasks scenario.classes_per_task
        scenario.max_train_per_class
        scenario.max_test_per_class model.num_features training.batch_size
        training.learning_rate training.lr_patience training.weight_decay
        training.early_stopping_patience federation.rounds_per_task
        federation.evaluate_every federation.deadline_factor
        federation.max_update_norm federation.clip_to_median
        federation.examples_limit federation.attackers federation.patience
        federation.min_updates federation.grace
        asynchronous.staleness_exponent privacy.noise_multiplier privacy.epsilon
        run.seed
    """,
    "[1": """
        training.epochs training.threads federation.max_attempts
    """,
    "[2": "model.places",
    "(0": "federation.timeout privacy.clip",
    "[0, 1)": "scenario.valid_fraction data.public_fraction training.momentum",
    "(0, 1]": "federation.client_fraction federation.quorum asynchronous.mixing",
    "(0, 1)": "privacy.delta training.lr_factor",
    "(0, 0.5)": "federation.hostile_fraction",
    "[0.51, 1]": "federation.secure_threshold",
    "[0, 0.9]": "federation.secure_collusion",
    "[0, 65535]": "run.metrics_port",
}
PARAMETERS = {
    "[0": """
        apd.lambda1 apd.lambda2 apd.weight_decay apd.threshold apd.mask_rate
        apd.consolidate_every apd.gap bic.bias_epochs bic.memory_samples
        dde-icarl.neighbours der.alpha der.beta der.memory_samples
        fedcbdr.memory_samples fedcbdr.old_weight fedcbdr.new_weight
        fedcurv.strength glfc.compensation glfc.distillation glfc.noise
        glfc.perturbation_steps glfc.memory_samples idbr.generic idbr.specific
        idbr.order idbr.task idbr.new_weight idbr.replayed_weight lwf.strength
        podnet.spatial_strength podnet.flat_strength podnet.margin
        podnet.finetune_epochs replay.memory_samples replay.memory_bytes
        replay-reg.strength ss-il.strength ss-il.memory_samples
        stable-sgd.minimum_rate fedprox-ssgd.minimum_rate
        target.alpha target.label_weight target.norm_weight target.warmup
        lander.current lander.previous lander.anchor_weight lander.radius
        lander.norm_weight
    """,
    "[1": """
        apd.groups der.replay_batch fedcurv.fisher_examples glfc.search_steps
        icarl.memory_samples podnet.proxies
        target.synthetic_samples target.generator_steps
        target.generator_width target.generator_noise target.student_epochs
    """,
    "(0": """
        bic.temperature bic.bias_rate glfc.entropy_rise lwf.temperature
        podnet.scale ss-il.temperature
        target.temperature lander.temperature
    """,
    "[0, 1]": "apd.initial_adapter dde-icarl.removal",
    "[0, 1)": "dde-icarl.momentum fot.energy_step",
    "(0, 1]": """
        idbr.buffer_fraction replay-reg.buffer_fraction ss-il.replay_ratio
        stable-sgd.gamma fedprox-ssgd.gamma fedweit.kappa
    """,
    "(0, 1)": "bic.held_out fot.energy",
    "[1, 100]": "stl.members",
    "[2": "target.synthetic_batch",
    "(0, 10]": "fot.sketch_width",
}
CHOICES = [
    ("glfc", "transition", "told"),
    ("icarl", "memory_policy", "all"),
    ("icarl", "classifier", "nearest"),
    ("icarl", "distillation", 1),
    ("idbr", "budget", "bytes"),
    ("lwf", "contrast", "old"),
    ("replay", "memory_policy", "newest"),
    ("replay-reg", "budget", "most"),
]


def bounds(interval, whole):
    """Yield what is just inside and just outside of each bound, with the words."""
    low, _, high = interval.partition(", ")
    ends = [(low[0] == "[", low[1:], -1, "greater than")]
    if high:
        ends.append((high[-1] == "]", high[:-1], 1, "less than"))
    kind, step = (int, 1) if whole else (float, 1e-6)
    for belongs, text, side, words in ends:
        value = float(text)
        inside, outside = value - side * step * (not belongs), value + side * step
        outside = outside if belongs else value
        words += " or equal to" * belongs
        yield kind(inside), kind(outside), f"{words} {text}"


def refused(table, default, build):
    """Hold each key's bounds against those of a table."""
    for interval, keys in table.items():
        for key in keys.split():
            for inside, outside, words in bounds(interval, type(default(key)) is int):
                build(key, inside)
                with pytest.raises(ConfigError) as problem:
                    build(key, outside)
                what = key.rpartition(".")[2]
                sentence = f"{what}: got {outside!r}, expected {words}"
                assert str(problem.value).endswith(sentence), key


def test_a_setting_is_refused_beyond_its_bounds_and_nowhere_else():
    def build(key, value):
        on = {"training.lr_patience": 0} if key == "training.lr_factor" else {}
        for rule in COUNTS:
            if key in rule.keys.split():
                on[rule.where] = rule.values[0] if rule.values else 0.5
        if key.startswith("privacy.") and key != "privacy.noise_multiplier":
            on["privacy.noise_multiplier"] = 1.0
        if key == "privacy.noise_multiplier":
            on["privacy.unit"] = "client" if value else "none"
        if key == "training.lr_factor":
            on["training.lr_steps"] = "0.5"
        if key == "federation.deadline_factor":
            on["federation.quorum"] = 0.5
        RunConfig.of({**on, key: value})

    refused(SETTINGS, lambda key: DEFAULTS[key], build)


def test_every_number_among_the_settings_has_its_range_in_the_table():
    numbers = {k for k, v in RunConfig().flat().items() if type(v) in (int, float)}

    assert numbers == {key for keys in SETTINGS.values() for key in keys.split()}


def test_a_parameter_is_refused_beyond_its_bounds_and_nowhere_else():
    def fields(key):
        name, _, field = key.partition(".")
        return algorithm(name), field

    def build(key, value):
        entry, field = fields(key)
        on = {}
        for counted, rule in entry.params_type.rules():
            if counted == f"strategy.{field}" and rule.values:
                on[rule.where.partition(".")[2]] = rule.values[0]
        assert getattr(entry.params({**on, field: value}), field) == value

    def default(key):
        entry, field = fields(key)
        return entry.params_type.model_fields[field].default

    refused(PARAMETERS, default, build)


@pytest.mark.parametrize(("name", "key", "value"), CHOICES)
def test_what_is_none_of_the_choices_is_refused(name, key, value):
    with pytest.raises(ConfigError, match=rf"^strategy\.{key}: got {value!r}, expecte"):
        algorithm(name).params({key: value})
