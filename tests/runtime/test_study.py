"""Studies: what their files say, which runs they do, and what candidates they choose.

The runs are pretended; one study at the end is real.
"""

import json
from pathlib import Path

import pytest
from fakes import run_in_process, tiny

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.parsing import validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.models.registry import MODELS
from fcl_flower.results.report import comparison
from fcl_flower.results.tables import rows, table
from fcl_flower.runtime.study import Choice, Row, Study, read_study, with_local_only
from fcl_flower.runtime.study_runs import run_folder, run_study, settle


class Pretended:
    """Leaves the folders of runs that a test says the accuracy of."""

    def __init__(self, accuracy=lambda config: 0.5, fails=(), stop_at=None):
        self.accuracy, self.fails, self.stop_at = accuracy, fails, stop_at
        self.ran, self.asked = [], []

    def __call__(self, jobs):
        self.asked.append([(job.name, job.number, job.of) for job in jobs])
        for job in jobs:
            config = job.run.config
            if len(self.ran) == self.stop_at:
                raise KeyboardInterrupt
            self.ran.append((config.title, config.run.seed, config.data.datasets))
            if job.name in self.fails or config.title in self.fails:
                yield job, RoundError("no replies")
                continue
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "config.toml").write_text(config.to_toml())
            found = dict.fromkeys(UNKNOWN) | {
                **{"label": config.title, "seed": config.run.seed, "counterpart": None},
                **{"average_accuracy": self.accuracy(config), "client_accuracy": []},
                **dict.fromkeys(COUNTED, 0),
            }
            (job.folder / "summary.json").write_text(json.dumps(found))
            yield job, found

    def names(self):
        return [(title, seed) for title, seed, _ in self.ran]


UNKNOWN = ("forgetting", "backward_transfer")
COUNTED = (
    *("bytes_up", "bytes_down", "nominal_bytes_up", "nominal_bytes_down"),
    *("model_bytes", "seconds"),
)


@pytest.fixture(autouse=True)
def page(monkeypatch):
    """Draw no page of what was not run; return what would."""
    draw = comparison.write_comparison
    monkeypatch.setattr(comparison, "write_comparison", lambda *folders: None)
    return draw


def never(jobs):
    for job in jobs:
        raise AssertionError(f"{job.name} ran again")
    yield from ()


def study_of(*names, seeds=(0, 1), **values):
    variants = tuple(
        tiny("", strategy=name, tasks=1, **values).replace(output="") for name in names
    )
    return Study(variants, seeds)


def rows_of(folder):
    found = json.loads((folder / "table.json").read_text())
    return {row["label"]: row["seeds"] for row in found}


# ---- what is run


def test_only_federated_strategies_get_a_local_only_counterpart_and_once():
    names = ("fedprox", "ewc", "stl", "local")
    variants = [RunConfig.from_settings(strategy=name) for name in names]
    again = RunConfig.from_settings(strategy="ewc", local_only=True)
    assert [variant.title for variant in with_local_only([again, *variants])] == [
        *("ewc local-only", "fedprox", "fedprox local-only", "ewc", "stl", "local")
    ]


def test_a_study_goes_seed_by_seed_and_on_where_it_was_stopped(tmp_path):
    study = study_of("fedavg", "local")
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, Pretended(stop_at=3))
    assert rows_of(tmp_path) == {"fedavg": [0, 1], "local": [0]}

    rest = Pretended()
    first = run_study(study, tmp_path, rest)

    assert rest.names() == [("local", 1)]
    assert [(s["label"], s["seed"]) for s in first] == [
        *(("fedavg", 0), ("local", 0), ("fedavg", 1), ("local", 1))
    ]
    assert run_study(study, tmp_path, never) == first
    assert (tmp_path / "table.md").read_text() == table(first)
    assert json.loads((tmp_path / "table.json").read_text()) == rows(first)


def test_a_run_that_fails_takes_no_other_with_it(tmp_path):
    study = study_of("local", seeds=(0, 1, 2))
    with pytest.raises(RoundError) as problem:
        run_study(study, tmp_path, Pretended(fails=["local seed 1"]))

    assert str(problem.value) == "1 of 3 runs failed: local seed 1: no replies"
    assert rows_of(tmp_path) == {"local": [0, 2]}
    rest = Pretended()
    assert len(run_study(study, tmp_path, rest)) == 3
    assert rest.asked == [[("local seed 1", 2, 3)]]


def test_a_part_of_a_study_can_be_run_and_the_tables_hold_all_that_is_finished(
    tmp_path,
):
    study = study_of("fedavg", "local")
    run_study(study, tmp_path, Pretended(), lambda config: config.run.seed == 1)
    assert rows_of(tmp_path) == {"fedavg": [1], "local": [1]}

    run_study(
        study, tmp_path, Pretended(), lambda config: config.strategy.name == "fedavg"
    )

    assert rows_of(tmp_path) == {"fedavg": [0, 1], "local": [1]}


@pytest.mark.parametrize(
    "changed",
    [
        {"epochs": 2},
        {"clients": 3},
        {"model": "lenet"},
        {"strategy": {"name": "fedprox", "mu": 0.5}},
        {"rounds": 2},
        {"classes_per_task": 3},
        {"wire_dtype": "float16"},
        {"head": "single"},
    ],
    ids=str,
)
def test_a_folder_with_other_settings_is_refused(tmp_path, changed):
    run_study(study_of("fedprox", seeds=(0,)), tmp_path, Pretended())
    other = study_of("fedprox", seeds=(0,))
    other = Study(tuple(v.replace(**changed) for v in other.variants), other.seeds)
    with pytest.raises(ConfigError) as problem:
        run_study(other, tmp_path, never)
    assert str(problem.value) == (
        f"output: got {str(tmp_path / 'fedprox-seed0')!r} with a run of other "
        "settings, expected an empty folder or one of the same study"
    )


@pytest.mark.parametrize(
    "changed",
    [
        *({"data_root": "elsewhere"}, {"client_state": "elsewhere"}),
        *({"model": "small"}, {"metrics_port": 9464}),
    ],
)
def test_where_things_lie_is_no_other_setting(tmp_path, changed):
    run_study(study_of("local", seeds=(0,)), tmp_path, Pretended())
    run_study(study_of("local", seeds=(0,), **changed), tmp_path, never)


@pytest.mark.parametrize("text", [None, "[strategy", "nonsense = 1\n"])
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path, text):
    run_study(study_of("local", seeds=(0,)), tmp_path, Pretended())
    path = tmp_path / "local-seed0" / "config.toml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError):
        run_study(study_of("local", seeds=(0,)), tmp_path, never)


def test_two_rows_of_one_title_are_refused(tmp_path):
    (tmp_path / "sweep.toml").write_text(
        "local_only_counterparts = false\n"
        '[[variant]]\nstrategy.name = "fedprox"\nstrategy.mu = 0.1\n'
        '[[variant]]\nstrategy.name = "fedprox"\nstrategy.mu = 0.5\n'
    )
    with pytest.raises(ConfigError, match=r"run.title: got 'fedprox', expected anoth"):
        run_study(read_study(tmp_path / "sweep.toml"), tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_two_titles_that_would_share_a_folder_are_refused(tmp_path):
    (tmp_path / "study.toml").write_text(
        '[[variant]]\nrun.title = "a/b c"\n[[variant]]\nrun.title = "a_b-c"\n'
    )
    with pytest.raises(ConfigError, match=r"run.title: got 'a/b c', expected another"):
        run_study(read_study(tmp_path / "study.toml"), tmp_path / "out", None)


@pytest.mark.parametrize("title", ["w/o momentum", "../x", "/x"])
def test_a_run_is_in_the_folder_of_its_study_whatever_its_title(tmp_path, title):
    (tmp_path / "study.toml").write_text(f"[run]\nrun.title = {title!r}\n")
    runs = read_study(tmp_path / "study.toml").runs()

    for config in runs:
        assert run_folder(tmp_path / "out", config).parent == tmp_path / "out"
    assert len({run_folder(tmp_path, config) for config in runs}) == 2


# ---- the file


def written(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_a_file_describes_a_study(tmp_path):
    study = read_study(
        written(
            tmp_path,
            """
            seeds = [3, 1]
            [run]
            scenario.clients = 5
            training.learning_rate = 1
            [run.data]
            datasets = "digits"
            [[variant]]
            strategy.name = "fedavg"
            [[variant]]
            strategy.name = "ewc"
            strategy.strength = 5
            scenario = { clients = 6, tasks = 2 }
            run.title = "EWC 5"
            """,
        )
    )
    assert study.seeds == (3, 1)
    assert [
        (v.title, v.scenario.clients, v.training.learning_rate) for v in study.variants
    ] == [
        ("fedavg", 5, 1.0),
        ("local", 5, 1.0),
        ("EWC 5", 6, 1.0),
        ("EWC 5 local-only", 6, 1.0),
    ]
    assert {v.data.datasets for v in study.variants} == {"digits"}
    assert [dict(v.strategy.params) for v in study.variants] == [
        *({}, {}),
        *([{"strength": 5}] * 2),
    ]
    assert [v.scenario.tasks for v in study.variants] == [4, 4, 2, 2]


def test_counterparts_can_be_declined(tmp_path):
    text = 'local_only_counterparts = false\n[[variant]]\nstrategy.name = "ewc"\n'
    study = read_study(written(tmp_path, text))
    assert [variant.title for variant in study.variants] == ["ewc"]
    assert study.seeds == (0,)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("seeds = [0", "study: got '{path}', expected a TOML file ("),
        (
            "seed = [0]",
            "study study.toml: seed: got 'seed', expected one of seeds, "
            "choice_seeds, local_only_counterparts, run, variant; did you mean "
            "'seeds'?; this is a study's file: ",
        ),
        ("seeds = 3", "study study.toml: seeds: got 3, expected a valid list"),
        (
            "seeds = []",
            "study study.toml: seeds: got [], expected at least 1 item; th",
        ),
        ("seeds = [-1]", "study study.toml: seeds.0: got -1, expected greater than or"),
        ('seeds = ["0"]', "study study.toml: seeds.0: got '0', expected a valid int"),
        ("run = 3", "study study.toml: run: got 3, expected a valid dictionary"),
        ("variant = 1", "study study.toml: variant: got 1, expected a valid list"),
        ("variant = [1]", "study study.toml: variant.0: got 1, expected a valid dict"),
        (
            "variant = []",
            "study study.toml: variant: got [], expected at least 1 item; th",
        ),
        (
            "local_only_counterparts = 1",
            "study study.toml: local_only_counterparts: got 1, expected a valid bool",
        ),
        ("[run]\nclient = 3", "client: got 'client', expected one of "),
        ("[run]\ntraining = 3", "training: got 3, expected a table, as this is a sec"),
        ("[run]\nscenario.clients = -3", "scenario.clients: got -3, expected greater"),
        ("[run]\ntraining.epoch = 3", "training.epoch: got 'epoch', expected one of "),
        ('[[variant]]\nstrategy.name = "x"', "strategy: got 'x', expected one of "),
        (
            '[[variant]]\nrun.title = "a, b"',
            "run.title: got 'a, b', expected one without a comma, which separates the "
            "rows of --only",
        ),
        (
            '[run]\nrun.output = "mine"',
            "run.output: got 'mine', expected none in a study, whose --output holds ",
        ),
        (
            "choice_seeds = [7]",
            "choice_seeds: got [7], expected none, without candidates",
        ),
        (
            "[[variant]]\ncandidates.training.epochs = [1, 2]",
            "choice_seeds: got [], expected seeds to compare candidates with",
        ),
        (
            "seeds = [1, 7]\nchoice_seeds = [7]\n"
            "[[variant]]\ncandidates.training.epochs = [1, 2]",
            "choice_seeds: got 7, expected a seed that is none of the table's",
        ),
        (
            "choice_seeds = [7]\n[[variant]]\ncandidates.training.epochs = [1]",
            "candidates.training.epochs: got [1], expected a list of two values or mo",
        ),
        (
            "choice_seeds = [7]\n[[variant]]\ncandidates.training.epochs = 1",
            "candidates.training.epochs: got 1, expected a list of two values or more",
        ),
        (
            "choice_seeds = [7]\n[[variant]]\ncandidates = [1, 2]",
            "candidates: got [1, 2], expected a table of lists, by section.key",
        ),
        (
            "choice_seeds = [7]\n[[variant]]\ncandidates.epochs = [1, 2]",
            "epochs: got 'epochs', expected one of ",
        ),
        (
            "choice_seeds = [7]\n[[variant]]\ncandidates.training.epoch = [1, 2]",
            "training.epoch: got 'epoch', expected one of ",
        ),
        (
            "choice_seeds = [7]\n[[variant]]\ncandidates.training.epochs = [1, 2]\n"
            '[[variant]]\nstrategy.name = "ewc"\n'
            "candidates.training.epochs = [1, 2, 3]",
            "candidates: got {'fedweit': 2, 'ewc': 3}, expected equally many for each "
            "row that has some",
        ),
    ],
)
def test_a_file_that_is_wrong_is_answered_with_one_sentence(tmp_path, text, start):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as problem:
        read_study(path)
    assert str(problem.value).startswith(start.replace("{path}", str(path)))
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "text", ["seed = [0]", "run = 3", "[run]\nclient = 3", "[[variant]]\nrun = 3"]
)
def test_a_key_in_the_wrong_place_is_answered_with_the_format(tmp_path, text):
    with pytest.raises(ConfigError) as problem:
        read_study(written(tmp_path, text))
    _, _, form = str(problem.value).partition("; this is a study's file: ")
    for part in ("seeds = [1, 2]", "[run]", "[[variant]]", 'strategy.name = "fedavg"'):
        assert part in form


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"study: .*none\.toml"):
        read_study(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"study: .*binary\.toml"):
        read_study(tmp_path / "binary.toml")


def test_the_studies_of_this_repository_can_be_read():
    files = list((Path(__file__).parents[2] / "experiments").rglob("*.toml"))
    assert files
    for file in files:
        study = read_study(file)
        titles = [variant.title for variant in study.variants]
        assert len(set(titles)) == len(titles)
        for variant in study.variants:
            entry = algorithm(variant.strategy.name)
            entry.params(variant.strategy.params)
            for section, known in (
                (variant.scenario, SCENARIOS),
                (variant.model, MODELS),
            ):
                if section.name:
                    validate_params(known[section.name].params, section.params)


# ---- candidates

EPOCHS = ({"training.epochs": 1}, {"training.epochs": 2})


def row(name, candidates=EPOCHS, **values):
    plain = tiny("", strategy=name, tasks=1, rounds=1, **values)
    return Row(plain.replace(output=""), candidates)


def choice_of(*rows, counterparts=False):
    choice = Choice(rows, (7, 8), counterparts)
    variants = choice.settled({one.config.title: {} for one in rows})
    return Study(variants, (1,), choice)


def titles(study):
    return [variant.title for variant in study.variants]


def epochs(config):
    return config.training.epochs


def test_the_best_candidate_of_each_row_is_taken(tmp_path):
    study = choice_of(row("fedprox"), row("fedavg"), row("stl", ()))

    def most_of_one_and_least_of_the_other(config):
        sign = 1 if config.strategy.name == "fedprox" else -1
        return 0.5 + sign * 0.1 * epochs(config)

    runs = Pretended(most_of_one_and_least_of_the_other)
    settled = settle(study, tmp_path, runs, titles(study))

    assert settled.choice is None
    assert settled.seeds == (1,)
    assert [(v.title, epochs(v)) for v in settled.variants] == [
        *(("fedprox", 2), ("fedavg", 1), ("stl", 1))
    ]
    # Nothing of the table is looked at: neither its seeds nor its test samples.
    assert {seed for _, seed, _ in runs.ran} == {7, 8}
    assert {names for _, _, names in runs.ran} == {"held-out:digits"}
    assert {v.data.datasets for v in settled.variants} == {""}
    assert [title for title, seed, _ in runs.ran if seed == 7] == [
        *("fedprox epochs=1", "fedprox epochs=2", "fedavg epochs=1", "fedavg epochs=2")
    ]


def test_the_mean_over_the_seeds_decides_and_of_equals_the_first(tmp_path):
    accuracy = {(1, 7): 0.9, (1, 8): 0.1, (2, 7): 0.5, (2, 8): 0.6}
    study = choice_of(row("stl"))
    best = settle(
        study,
        tmp_path / "a",
        Pretended(lambda config: accuracy[epochs(config), config.run.seed]),
        ["stl"],
    )
    equal = settle(study, tmp_path / "b", Pretended(lambda config: 0.5), ["stl"])

    assert [epochs(v) for v in best.variants] == [2]
    assert [epochs(v) for v in equal.variants] == [1]


def test_what_was_compared_is_written_down(tmp_path):
    study = choice_of(row("stl"), row("local"))
    settle(study, tmp_path, Pretended(lambda c: epochs(c) / 10), titles(study))

    values = [{"training.epochs": 1}, {"training.epochs": 2}]
    assert json.loads((tmp_path / "chosen.json").read_text()) == [
        {
            "row": name,
            "values": values[at],
            "accuracy": [(at + 1) / 10] * 2,
            "chosen": at == 1,
        }
        for name in ("stl", "local")
        for at in (0, 1)
    ]
    lines = (tmp_path / "chosen.md").read_text().splitlines()
    assert lines[0].endswith("held out, seeds 7, 8.")
    assert lines[4:] == [
        "| stl | `training.epochs = 1` | 0.100 |  |",
        "| stl | `training.epochs = 2` | 0.200 | chosen |",
        "| local | `training.epochs = 1` | 0.100 |  |",
        "| local | `training.epochs = 2` | 0.200 | chosen |",
    ]


def test_a_counterpart_has_the_values_of_its_row(tmp_path):
    study = choice_of(row("ewc"), counterparts=True)
    assert titles(study) == ["ewc", "ewc local-only"]
    runs = Pretended(epochs)
    settled = settle(study, tmp_path, runs, ["ewc local-only"])
    assert [(v.title, epochs(v)) for v in settled.variants] == [
        *(("ewc", 2), ("ewc local-only", 2))
    ]
    assert len(runs.ran) == 4


def test_rows_that_are_not_wanted_wait(tmp_path):
    study = choice_of(row("stl"), row("local"), row("fedavg", ()))
    runs = Pretended(epochs)
    first = settle(study, tmp_path, runs, ["local"])
    assert {title for title, _, _ in runs.ran} == {"local epochs=1", "local epochs=2"}
    assert titles(first) == ["local", "fedavg"]

    runs = Pretended(epochs)
    both = settle(study, tmp_path, runs, ["stl"])
    assert {title for title, _, _ in runs.ran} == {"stl epochs=1", "stl epochs=2"}
    assert [(v.title, epochs(v)) for v in both.variants] == [
        *(("stl", 2), ("local", 2), ("fedavg", 1))
    ]


def test_a_row_without_candidates_waits_for_no_other(tmp_path):
    study = choice_of(row("stl"), row("fedavg", ()))
    runs = Pretended(epochs)
    settled = settle(study, tmp_path / "new", runs, ["fedavg"])
    assert titles(settled) == ["fedavg"]
    assert not runs.ran
    assert not (tmp_path / "new").exists()


def test_without_accuracies_nothing_is_run_to_choose_by(tmp_path):
    runs = Pretended(epochs)
    plain = row("stl")
    silent = Row(plain.config.replace(**{"privacy.scores": False}), plain.candidates)
    with pytest.raises(ConfigError, match=r"privacy\.scores: got False, expected true"):
        settle(choice_of(silent), tmp_path, runs, ["stl"])
    assert not runs.ran


def test_a_candidate_that_ends_without_an_accuracy_is_named(tmp_path):
    runs = Pretended(lambda config: None if epochs(config) == 2 else 0.5)
    with pytest.raises(RoundError, match="stl epochs=2 seed 7 ended without an accu"):
        settle(choice_of(row("stl")), tmp_path, runs, ["stl"])
    assert not (tmp_path / "chosen.json").exists()


def test_a_choice_goes_on_where_it_was_stopped(tmp_path):
    study = choice_of(row("stl"))
    failing = Pretended(epochs, fails=["stl epochs=2"])
    with pytest.raises(RoundError, match="2 of 4 runs failed"):
        settle(study, tmp_path, failing, ["stl"])
    assert not (tmp_path / "chosen.json").exists()

    rest = Pretended(epochs)
    settled = settle(study, tmp_path, rest, ["stl"])
    assert {title for title, _, _ in rest.ran} == {"stl epochs=2"}
    assert [epochs(v) for v in settled.variants] == [2]


def test_a_wrong_row_is_told_before_anything_runs(tmp_path):
    study = choice_of(row("stl"), row("fedavg", (), classes_per_task=11))
    runs = Pretended(epochs)
    with pytest.raises(ConfigError, match="0 groups of 11 classes"):
        settle(study, tmp_path, runs, titles(study))
    assert not runs.ran


def test_what_suits_the_data_is_what_the_table_has(tmp_path):
    """Held-out digits have another name, but the network of digits."""
    models = []
    runs = Pretended(lambda config: models.append(config.model.name) or 0.5)
    config = row("stl").config.replace(model="")
    settle(choice_of(Row(config, EPOCHS)), tmp_path, runs, ["stl"])
    assert set(models) == {"small"}


def test_a_study_that_leaves_nothing_open_is_as_it_was(tmp_path):
    study = Study((row("stl").config,), (0,))
    assert settle(study, tmp_path, Pretended(epochs), ["stl"]) == study
    assert not [*tmp_path.iterdir()]


def test_a_file_lists_candidates(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        """
        seeds = [1]
        choice_seeds = [7]
        [run]
        data.datasets = "digits"
        [[variant]]
        strategy.name = "fedprox"
        run.title = "FedProx"
        candidates.strategy.mu = [0.1, 1.0]
        candidates.training.epochs = [1, 3]
        [[variant]]
        strategy.name = "stl"
        """
    )
    study = read_study(path).mapped(
        lambda config: config.replace(data_root="elsewhere")
    )
    assert titles(study) == ["FedProx", "FedProx local-only", "stl"]
    assert {v.data.root for v in study.variants} == {"elsewhere"}
    assert study.choice is not None
    assert study.choice.seeds == (7,)
    first, second = study.choice.rows
    assert {first.config.data.root, second.config.data.root} == {"elsewhere"}
    assert [tuple(c.values()) for c in first.candidates] == [
        *((0.1, 1), (0.1, 3), (1.0, 1), (1.0, 3))
    ]
    assert first.config.strategy.params["mu"] == 0.1
    assert not second.candidates


def test_a_real_study_has_its_tables_and_its_page(tmp_path, page, monkeypatch):
    monkeypatch.setattr(comparison, "write_comparison", page)

    def run_all(jobs):
        for job in jobs:
            job.folder.mkdir()
            run_in_process(job.run.config.replace(output=str(job.folder)))
            yield job, json.loads((job.folder / "summary.json").read_text())

    run_study(study_of("fedavg", "local", seeds=(0,)), tmp_path, run_all)

    assert rows_of(tmp_path) == {"fedavg": [0], "local": [0]}
    assert "fedavg" in (tmp_path / "comparison.html").read_text()
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {
        *("fedavg-seed0", "local-seed0")
    }
