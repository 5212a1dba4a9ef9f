"""Studies: what their files say, which runs they do, and what candidates they choose.

The runs are pretended; one study at the end is real.
"""

import json
from dataclasses import replace
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
from fcl_flower.setup import build
from fcl_flower.simulation.study import Study, read_study, with_local_only
from fcl_flower.simulation.study_runs import checked, run_folder, run_study, settle


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
            (job.folder / "config.toml").write_text(config.to_file())
            found = dict.fromkeys(UNKNOWN) | {
                **{"label": config.title, "seed": config.run.seed, "counterpart": None},
                **{"average_accuracy": self.accuracy(config), "client_accuracy": []},
                **dict.fromkeys(COUNTED, 0),
            }
            (job.folder / "summary.json").write_text(json.dumps(found))
            yield job, found

    def titles(self):
        return {title for title, _, _ in self.ran}


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


def row(name, **values):
    return tiny("", strategy=name, tasks=1, rounds=1, **values).replace(output="")


def study_of(*names, seeds=(0, 1), **values):
    return Study(tuple(row(name, **values) for name in names), seeds)


def rows_of(folder):
    found = json.loads((folder / "table.json").read_text())
    return {row["label"]: row["seeds"] for row in found}


def titles(study):
    return [variant.title for variant in study.variants]


# ---- what is run


def test_only_federated_strategies_get_a_local_only_counterpart_and_once():
    names = ("fedprox", "ewc", "stl", "local")
    variants = [RunConfig.from_settings(strategy=name) for name in names]
    again = RunConfig.from_settings(strategy="ewc", local_only=True)
    assert [variant.title for variant in with_local_only([again, *variants])] == [
        *("ewc local-only", "fedprox", "fedprox local-only", "ewc", "stl", "local")
    ]


def test_a_counterpart_goes_by_the_title_of_its_row():
    variants = [
        RunConfig.from_settings(strategy=name, title=title)
        for name, title in (("fedavg", "slow"), ("fedavg", "fast"), ("ewc", "EWC"))
    ]
    assert [variant.title for variant in with_local_only(variants)] == [
        *("slow", "slow local-only", "fast", "fast local-only"),
        *("EWC", "EWC local-only"),
    ]


def test_a_study_goes_seed_by_seed_and_on_where_it_was_stopped(tmp_path):
    study = study_of("fedavg", "local")
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, Pretended(stop_at=3))
    assert rows_of(tmp_path) == {"fedavg": [0, 1], "local": [0]}

    rest = Pretended()
    first = run_study(study, tmp_path, rest)

    assert rest.asked == [[("local seed 1", 4, 4)]]
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


def test_a_part_can_be_run_and_the_tables_hold_all_that_is_finished(tmp_path):
    study = study_of("fedavg", "local")
    run_study(study, tmp_path, Pretended(), lambda config: config.run.seed == 1)
    assert rows_of(tmp_path) == {"fedavg": [1], "local": [1]}

    run_study(study, tmp_path, Pretended(), lambda config: config.title == "fedavg")

    assert rows_of(tmp_path) == {"fedavg": [0, 1], "local": [1]}


@pytest.mark.parametrize(
    "changed",
    [
        {"clients": 3},
        {"model": "lenet"},
        {"strategy": {"name": "fedprox", "mu": 0.5}},
        {"wire_dtype": "float16"},
    ],
    ids=str,
)
def test_a_folder_with_other_settings_is_refused(tmp_path, changed):
    study = study_of("fedprox", seeds=(0,))
    run_study(study, tmp_path, Pretended())
    with pytest.raises(ConfigError) as problem:
        run_study(study.mapped(lambda c: c.replace(**changed)), tmp_path, never)
    assert str(problem.value) == (
        f"output: got {str(tmp_path / 'fedprox-seed0')!r} with a run of other "
        "settings, expected an empty folder or one of the same study"
    )


def test_where_things_lie_is_no_other_setting(tmp_path):
    run_study(study_of("local", seeds=(0,)), tmp_path, Pretended())
    free = {"data_root": "elsewhere", "client_state": "else", "metrics_port": 9464}
    run_study(study_of("local", seeds=(0,), **free), tmp_path, never)
    run_study(study_of("local", seeds=(0,), model="small"), tmp_path, never)


@pytest.mark.parametrize("text", [None, "[strategy", "nonsense = 1\n"])
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path, text):
    run_study(study_of("local", seeds=(0,)), tmp_path, Pretended())
    path = tmp_path / "local-seed0" / "config.toml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError):
        run_study(study_of("local", seeds=(0,)), tmp_path, never)


@pytest.mark.parametrize("pair", [("fedprox", "fedprox"), ("a/b c", "a_b-c")])
def test_two_rows_that_would_share_a_folder_are_refused(tmp_path, pair):
    study = Study(tuple(row("local").replace(**{"run.title": t}) for t in pair), (0,))
    with pytest.raises(ConfigError, match=rf"run.title: got '{pair[0]}', expected ano"):
        run_study(study, tmp_path / "out", never)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("title", ["w/o momentum", "../x", "/x"])
def test_a_run_is_in_the_folder_of_its_study_whatever_its_title(tmp_path, title):
    named = row("ewc").replace(**{"run.title": title})
    folders = {run_folder(tmp_path, one) for one in with_local_only([named])}
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path}


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
        (v.title, v.scenario.clients, v.scenario.tasks, dict(v.strategy.params))
        for v in study.variants
    ] == [
        ("fedavg", 5, 0, {}),
        ("local", 5, 0, {}),
        ("EWC 5", 6, 2, {"strength": 5}),
        ("EWC 5 local-only", 6, 2, {"strength": 5}),
    ]
    assert {v.data.datasets for v in study.variants} == {"digits"}
    assert {v.training.learning_rate for v in study.variants} == {1.0}


def test_counterparts_can_be_declined(tmp_path):
    text = 'local_only_counterparts = false\n[[variant]]\nstrategy.name = "ewc"\n'
    study = read_study(written(tmp_path, text))
    assert titles(study) == ["ewc"]
    assert study.seeds == (0,)


def test_a_file_lists_candidates(tmp_path):
    text = """
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
    study = read_study(written(tmp_path, text))
    study = study.mapped(lambda config: config.replace(data_root="elsewhere"))
    assert titles(study) == ["FedProx", "FedProx local-only", "stl"]
    assert {v.data.root for v in study.variants} == {"elsewhere"}
    assert study.choice_seeds == (7,)
    ((title, candidates),) = study.candidates.items()
    assert title == "FedProx"
    assert [tuple(c.values()) for c in candidates] == [
        *((0.1, 1), (0.1, 3), (1.0, 1), (1.0, 3))
    ]
    assert study.rows[0].strategy.params["mu"] == 0.1


OPEN = "[[variant]]\ncandidates.training.epochs = [1, 2]\n"
LISTS = "choice_seeds = [7]\n[[variant]]\n"
OF_STUDY = [
    ("seed = [0]", "seed: got 'seed', expected one of seeds, choice_seeds, "),
    ("seeds = 3", "seeds: got 3, expected a valid list"),
    ("seeds = []", "seeds: got [], expected at least 1 item"),
    ("seeds = [-1]", "seeds.0: got -1, expected greater than or"),
    ('seeds = ["0"]', "seeds.0: got '0', expected a valid int"),
    ("run = 3", "run: got 3, expected a valid dictionary"),
    ("variant = [1]", "variant.0: got 1, expected a valid dict"),
    ("variant = []", "variant: got [], expected at least 1 item"),
    ("local_only_counterparts = 1", "local_only_counterparts: got 1, expected a val"),
]
OF_SETTINGS = [
    ("seeds = [0", "study: got '{path}', expected a TOML file ("),
    ("[run]\nclient = 3", "client: got 'client', expected one of "),
    ("[run]\ntraining = 3", "training: got 3, expected a table, as this is a section"),
    ("[[variant]]\nrun = 3", "run: got 3, expected a table, as this is a section"),
    ("[run]\nscenario.clients = -3", "scenario.clients: got -3, expected greater"),
    ("[run]\ntraining.epoch = 3", "training.epoch: got 'epoch', expected one of "),
    ('[[variant]]\nstrategy.name = "x"', "strategy: got 'x', expected one of "),
    ('[[variant]]\nrun.title = "a, b"', "run.title: got 'a, b', expected one without"),
    ('[run]\nrun.output = "mine"', "run.output: got 'mine', expected none in a study"),
    ("choice_seeds = [7]", "choice_seeds: got [7], expected none, without candidates"),
    (OPEN, "choice_seeds: got [], expected seeds to compare candidates with"),
    (
        "seeds = [1, 7]\nchoice_seeds = [7]\n" + OPEN,
        "choice_seeds: got 7, expected a seed that is none of the table's",
    ),
    (
        LISTS + "candidates.training.epochs = [1]",
        "candidates.training.epochs: got [1], expected a list of two values or more",
    ),
    (
        LISTS + "candidates.training.epochs = 1",
        "candidates.training.epochs: got 1, expected a list of two values or more",
    ),
    (
        LISTS + "candidates = [1, 2]",
        "candidates: got [1, 2], expected a table of lists, by section.key",
    ),
    (LISTS + "candidates.epochs = [1, 2]", "epochs: got 'epochs', expected one of "),
    (
        "choice_seeds = [7]\n" + OPEN + '[[variant]]\nstrategy.name = "ewc"\n'
        "candidates.training.epochs = [1, 2, 3]",
        "candidates: got {'fedweit': 2, 'ewc': 3}, expected equally many for each ",
    ),
]


@pytest.mark.parametrize(
    ("text", "start"),
    [(t, f"study study.toml: {s}") for t, s in OF_STUDY] + OF_SETTINGS,
)
def test_a_file_that_is_wrong_is_answered_with_one_sentence(tmp_path, text, start):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as problem:
        read_study(path)
    said, _, form = str(problem.value).partition("; this is a study's file: ")
    assert said.startswith(start.replace("{path}", str(path)))
    assert "\n" not in said
    if (text, start) not in OF_SETTINGS or "expected a table, as" in said:
        assert form.startswith("seeds = [1, 2], [run] with what all runs share")


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
        assert len(set(titles(study))) == len(study.variants)
        for variant in study.variants:
            algorithm(variant.strategy.name).params(variant.strategy.params)
            for section, known in (
                (variant.scenario, SCENARIOS),
                (variant.model, MODELS),
            ):
                if section.name:
                    validate_params(known[section.name].params, section.params)


# ---- candidates

EPOCHS = ({"training.epochs": 1}, {"training.epochs": 2})


def choice_of(*choosing, fixed=(), counterparts=False):
    """A study of some rows with two candidates each, and of others without."""
    choosing = tuple(row(one) if isinstance(one, str) else one for one in choosing)
    candidates = {one.title: EPOCHS for one in choosing}
    return Study((*choosing, *fixed), (1,), candidates, (7, 8), counterparts)


def epochs(config):
    return config.training.epochs


def chosen(study):
    return [(v.title, epochs(v)) for v in study.variants]


def test_the_best_candidate_of_each_row_is_taken(tmp_path):
    study = choice_of("fedprox", "fedavg", fixed=[row("stl")])

    def most_of_one_and_least_of_the_other(config):
        sign = 1 if config.strategy.name == "fedprox" else -1
        return 0.5 + sign * 0.1 * epochs(config)

    runs = Pretended(most_of_one_and_least_of_the_other)
    settled = settle(study, tmp_path, runs, titles(study))

    assert not settled.candidates
    assert settled.seeds == (1,)
    assert chosen(settled) == [("fedprox", 2), ("fedavg", 1), ("stl", 1)]
    # Nothing of the table is looked at: neither its seeds nor its test samples.
    assert {seed for _, seed, _ in runs.ran} == {7, 8}
    assert {names for _, _, names in runs.ran} == {"held-out:digits"}
    assert {v.data.datasets for v in settled.variants} == {""}
    assert [title for title, seed, _ in runs.ran if seed == 7] == [
        *("fedprox epochs=1", "fedprox epochs=2", "fedavg epochs=1", "fedavg epochs=2")
    ]


def test_the_mean_over_the_seeds_decides_and_of_equals_the_first(tmp_path):
    accuracy = {(1, 7): 0.9, (1, 8): 0.1, (2, 7): 0.5, (2, 8): 0.6}
    by_mean = Pretended(lambda config: accuracy[epochs(config), config.run.seed])

    best = settle(choice_of("stl"), tmp_path / "a", by_mean, ["stl"])
    equal = settle(choice_of("stl"), tmp_path / "b", Pretended(), ["stl"])

    assert (chosen(best), chosen(equal)) == ([("stl", 2)], [("stl", 1)])


def test_what_was_compared_is_written_down(tmp_path):
    study = choice_of("stl", "local")
    settle(study, tmp_path, Pretended(lambda c: epochs(c) / 10), titles(study))

    assert json.loads((tmp_path / "chosen.json").read_text()) == [
        {
            "row": name,
            "values": {"training.epochs": at},
            "accuracy": [at / 10] * 2,
            "chosen": at == 2,
        }
        for name in ("stl", "local")
        for at in (1, 2)
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
    study = choice_of("ewc", counterparts=True)
    assert titles(study) == ["ewc", "ewc local-only"]
    runs = Pretended(epochs)
    settled = settle(study, tmp_path, runs, ["ewc local-only"])
    assert chosen(settled) == [("ewc", 2), ("ewc local-only", 2)]
    assert len(runs.ran) == 4


def test_rows_that_are_not_wanted_wait_and_one_without_candidates_for_none(tmp_path):
    study = choice_of("stl", "local", fixed=[row("fedavg")])
    folder = tmp_path / "new"
    runs = [Pretended(epochs) for _ in range(3)]

    none = settle(study, folder, runs[0], ["fedavg"])
    assert not folder.exists()
    first = settle(study, folder, runs[1], ["local"])
    both = settle(study, folder, runs[2], ["stl"])

    assert [one.titles() for one in runs] == [
        *(set(), {"local epochs=1", "local epochs=2"}, {"stl epochs=1", "stl epochs=2"})
    ]
    assert chosen(none) == [("fedavg", 1)]
    assert chosen(first) == [("local", 2), ("fedavg", 1)]
    assert chosen(both) == [("stl", 2), ("local", 2), ("fedavg", 1)]


def test_a_candidate_that_ends_without_an_accuracy_is_named(tmp_path):
    runs = Pretended(lambda config: None if epochs(config) == 2 else 0.5)
    with pytest.raises(RoundError, match="stl epochs=2 seed 7 ended without an accu"):
        settle(choice_of("stl"), tmp_path, runs, ["stl"])
    assert not (tmp_path / "chosen.json").exists()


def test_a_choice_goes_on_where_it_was_stopped(tmp_path):
    study = choice_of("stl")
    failing = Pretended(epochs, fails=["stl epochs=2"])
    with pytest.raises(RoundError, match="2 of 4 runs failed"):
        settle(study, tmp_path, failing, ["stl"])
    assert not (tmp_path / "chosen.json").exists()

    rest = Pretended(epochs)
    settled = settle(study, tmp_path, rest, ["stl"])
    assert rest.titles() == {"stl epochs=2"}
    assert chosen(settled) == [("stl", 2)]


SILENT = choice_of(row("stl", **{"privacy.scores": False}))
WRONG = choice_of("stl", fixed=[row("fedavg", classes_per_task=11)])


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (SILENT, r"privacy\.scores: got false, expected true"),
        (WRONG, "got 11, expected at most the 10 classes"),
    ],
    ids=["silent", "wrong"],
)
def test_what_cannot_be_compared_is_told_before_anything_runs(tmp_path, study, said):
    with pytest.raises(ConfigError, match=said):
        settle(study, tmp_path, never, titles(study))


def test_all_of_a_row_is_built_once_and_for_other_seeds_its_scenario(monkeypatch):
    whole, drawn = [], []

    class Drawn(build.Built):
        @property
        def scenario(self):
            drawn.append((self.config.title, self.config.run.seed))

    monkeypatch.setattr(build, "validate", lambda one: whole.append(one.config.title))
    monkeypatch.setattr(build, "built", Drawn)

    checked(Study((row("stl"), row("fedavg")), seeds=(1, 2)))

    assert whole == ["stl", "fedavg"]
    assert drawn == [("stl", 2), ("fedavg", 2)]


def test_what_suits_the_data_is_what_the_table_has(tmp_path):
    """Held-out digits have another name, but the network of digits."""
    models = []
    runs = Pretended(lambda config: models.append(config.model.name) or 0.5)
    settle(choice_of(row("stl").replace(model="")), tmp_path, runs, ["stl"])
    assert set(models) == {"small"}


def test_a_study_that_leaves_nothing_open_is_as_it_was(tmp_path):
    study = replace(choice_of("stl"), candidates={})
    assert settle(study, tmp_path, never, ["stl"]) is study
    assert not [*tmp_path.iterdir()]


@pytest.mark.run
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
