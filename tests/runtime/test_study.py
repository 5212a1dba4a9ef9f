import json
from pathlib import Path

import pytest
from fakes import run_in_process, summary_of, tiny

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.parsing import validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.models.registry import MODELS
from fcl_flower.results.tables import rows, table
from fcl_flower.runtime.study import Study, read_study, with_local_only
from fcl_flower.runtime.study_runs import run_folder, run_study


class Runner:
    """Runs in this process, and counts."""

    def __init__(self, stop_at=None):
        self.ran = []
        self.stop_at = stop_at

    def __call__(self, jobs):
        for job in jobs:
            if len(self.ran) == self.stop_at:
                raise KeyboardInterrupt
            self.ran.append((job.run.config.title, job.run.config.run.seed))
            job.folder.mkdir(exist_ok=True)
            run_in_process(job.run.config.replace(output=str(job.folder)))
            yield job, json.loads((job.folder / "summary.json").read_text())


def never(jobs):
    for job in jobs:
        raise AssertionError(f"{job.name} ran again")
    yield from ()


def study_of(*names, seeds=(0, 1), **values):
    variants = tuple(
        tiny("", strategy=name, tasks=1, **values).replace(output="") for name in names
    )
    return Study(variants, seeds)


def summary(label, seed, accuracy, *, twin=None, clients=(), **values):
    """A summary of which only the given values matter."""
    return {
        "label": label,
        "counterpart": twin,
        "seed": seed,
        "average_accuracy": accuracy,
        "forgetting": 0.1,
        "backward_transfer": -0.1,
        "bytes_up": 3_000_000,
        "bytes_down": 5_000_000,
        "nominal_bytes_up": 1_000_000,
        "nominal_bytes_down": 2_000_000,
        "model_bytes": 400_000,
        "seconds": 2.0,
        "client_accuracy": clients,
        **values,
    }


# ---- what is run


def test_runs_go_seed_by_seed():
    runs = study_of("fedavg", "local").runs()
    assert [(run.strategy.name, run.run.seed) for run in runs] == [
        ("fedavg", 0),
        ("local", 0),
        ("fedavg", 1),
        ("local", 1),
    ]


def test_only_federated_strategies_get_a_local_only_counterpart():
    names = ("fedprox", "ewc", "stl", "local")
    variants = tuple(RunConfig.from_settings(strategy=name) for name in names)
    assert [variant.title for variant in with_local_only(variants)] == [
        "fedprox",
        "fedprox local-only",
        "ewc",
        "ewc local-only",
        "stl",
        "local",
    ]


def test_a_counterpart_that_is_there_already_is_not_run_twice():
    variants = (
        RunConfig.from_settings(strategy="fedavg"),
        RunConfig.from_settings(strategy="local"),
        RunConfig.from_settings(strategy="ewc", local_only=True),
        RunConfig.from_settings(strategy="ewc"),
    )
    titles = [variant.title for variant in with_local_only(variants)]
    assert titles == ["fedavg", "local", "ewc local-only", "ewc"]


def test_a_study_runs_everything_and_writes_tables_and_a_page(tmp_path):
    runner = Runner()
    summaries = run_study(study_of("fedavg", "local"), tmp_path, runner)
    assert runner.ran == [(n, seed) for seed in (0, 1) for n in ("fedavg", "local")]
    assert [(s["label"], s["seed"]) for s in summaries] == runner.ran
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {
        *("fedavg-seed0", "local-seed0", "fedavg-seed1", "local-seed1")
    }
    assert (tmp_path / "table.md").read_text() == table(summaries)
    assert json.loads((tmp_path / "table.json").read_text()) == rows(summaries)
    assert "fedavg" in (tmp_path / "comparison.html").read_text()


def test_a_study_goes_on_where_it_was_stopped(tmp_path):
    study = study_of("fedavg", "local")
    stopped = Runner(stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, stopped)
    assert len(json.loads((tmp_path / "table.json").read_text())) == 2
    rest = Runner()
    first = run_study(study, tmp_path, rest)
    assert rest.ran == [("local", 1)]
    assert run_study(study, tmp_path, never) == first


def test_a_run_that_fails_takes_no_other_with_it(tmp_path):
    runner = Runner()

    def second_fails(jobs):
        assert [(job.number, job.of) for job in jobs] == [(1, 3), (2, 3), (3, 3)]
        for job in jobs:
            if job.number == 2:
                yield job, RoundError("no replies")
            else:
                yield from runner([job])

    study = study_of("local", seeds=(0, 1, 2))
    with pytest.raises(RoundError) as problem:
        run_study(study, tmp_path, second_fails)

    assert str(problem.value) == "1 of 3 runs failed: local seed 1: no replies"
    (row,) = rows_of(tmp_path)
    assert row["seeds"] == [0, 2]

    def the_rest(jobs):
        assert [(job.name, job.number, job.of) for job in jobs] == [
            ("local seed 1", 2, 3)
        ]
        return runner(jobs)

    assert len(run_study(study, tmp_path, the_rest)) == 3


def test_a_run_that_was_stopped_in_the_middle_is_run_again(tmp_path):
    study = study_of("local", seeds=(0,))
    run_study(study, tmp_path, Runner())
    (tmp_path / "local-seed0" / "summary.json").unlink()
    runner = Runner()
    run_study(study, tmp_path, runner)
    assert runner.ran == [("local", 0)]


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
    run_study(study_of("fedprox", seeds=(0,)), tmp_path, Runner())
    kept = summary_of(tmp_path / "fedprox-seed0")
    other = study_of("fedprox", seeds=(0,))
    other = Study(tuple(v.replace(**changed) for v in other.variants), other.seeds)
    with pytest.raises(ConfigError) as problem:
        run_study(other, tmp_path, never)
    assert str(problem.value) == (
        f"output: got {str(tmp_path / 'fedprox-seed0')!r} with a run of other "
        "settings, expected an empty folder or one of the same study"
    )
    assert summary_of(tmp_path / "fedprox-seed0") == kept


@pytest.mark.parametrize(
    "changed",
    [
        *({"data_root": "elsewhere"}, {"client_state": "elsewhere"}),
        *({"model": "small"}, {"metrics_port": 9464}),
    ],
)
def test_where_things_lie_is_no_other_setting(tmp_path, changed):
    run_study(study_of("local", seeds=(0,)), tmp_path, Runner())
    run_study(study_of("local", seeds=(0,), **changed), tmp_path, never)


@pytest.mark.parametrize("text", [None, "[strategy", "nonsense = 1\n"])
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path, text):
    run_study(study_of("local", seeds=(0,)), tmp_path, Runner())
    path = tmp_path / "local-seed0" / "config.toml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError):
        run_study(study_of("local", seeds=(0,)), tmp_path, never)


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


# ---- tables


def test_rows_hold_mean_and_deviation_over_seeds():
    (row,) = rows(
        [
            summary("a", 0, 0.5, forgetting=0.1, bytes_up=100, seconds=1.0),
            summary("a", 2, 0.7, forgetting=0.3, bytes_up=300, seconds=4.0),
            summary("a", 1, 0.6, forgetting=0.2, bytes_up=500, seconds=1.0),
        ]
    )
    assert row["label"] == "a"
    assert row["seeds"] == [0, 1, 2]
    assert row["average_accuracy"] == pytest.approx({"mean": 0.6, "deviation": 0.1})
    assert row["forgetting"] == pytest.approx({"mean": 0.2, "deviation": 0.1})
    assert row["bytes_up"] == 300
    assert row["seconds"] == 2.0
    assert "transfer_gain" not in row


def test_a_single_seed_has_no_deviation():
    (row,) = rows([summary("a", 0, 0.5)])
    assert row["average_accuracy"] == {"mean": 0.5, "deviation": None}


def test_the_gain_is_paired_by_seed():
    def clients(*finals):
        return [[[0.9, None], list(final)] for final in finals]

    found = rows(
        [
            summary("f", 0, 0.7, twin="i", clients=clients((0.6, 0.8), (0.7, 0.7))),
            summary("i", 0, 0.6, clients=clients((0.5, 0.8), (0.4, 0.7))),
            summary("f", 1, 0.6, twin="i", clients=clients((0.5, 0.7), (0.5, 0.7))),
            summary("i", 1, 0.3, clients=clients((0.3, 0.3), (0.3, 0.3))),
            summary("f", 2, 0.9, twin="i", clients=clients((1, 1), (1, 1))),  # no pair
        ]
    )
    # Seed 0: +0.1, seed 1: +0.3; deviation of two values: their difference / sqrt 2.
    assert found[0]["transfer_gain"] == pytest.approx(
        {"mean": 0.2, "deviation": 0.2 / 2**0.5}
    )
    # Task 0: (0.1 + 0.3) / 2 = 0.2 and 0.2; task 1: 0 and 0.4.
    assert found[0]["transfer_gain_per_task"] == pytest.approx([0.2, 0.2])
    assert "transfer_gain" not in found[1]


def test_what_was_not_measured_is_left_out():
    unknown = [[[None, None], [None, None]]]
    found = rows(
        [
            summary("f", 0, None, twin="i", clients=unknown, forgetting=None),
            summary("i", 0, 0.6, clients=unknown),
            summary("f", 1, 0.8, twin="i", clients=[[[0.5, None], [0.9, None]]]),
            summary("i", 1, 0.5, clients=[[[0.5, None], [0.5, None]]]),
        ]
    )
    assert found[0]["average_accuracy"] == {"mean": 0.8, "deviation": None}
    assert found[0]["transfer_gain"]["mean"] == pytest.approx(0.3)
    assert found[0]["transfer_gain_per_task"] == [pytest.approx(0.4), None]
    nothing = [summary("f", 0, None, forgetting=None, backward_transfer=None)]
    assert rows(nothing)[0]["average_accuracy"] is None
    assert "| f | 0 |  |  |  |" in table(nothing)


def test_the_table_by_hand():
    text = table(
        [
            summary("f", 0, 0.75, twin="i", clients=[[[0.75]]]),
            summary("i", 0, 0.5, clients=[[[0.5]]]),
        ]
    )
    lines = text.splitlines()
    assert lines[2] == (
        "| f | 0 | 0.750 | 0.100 | +0.250 | 3.0 MB | 5.0 MB | 1.0 MB | 0.4 MB |"
    )
    assert lines[3].startswith("| i | 0 | 0.500 | 0.100 |  |")


def test_static_data_are_not_paired_with_a_stream():
    drift, static = (
        {"scenario.window": 64, "scenario.mean_duration": 8},
        {"scenario.window": 64, "scenario.mean_duration": 0},
    )
    found = rows(
        [
            summary("f", 0, 0.75, twin="i", hidden=drift, clients=[[[0.75]]]),
            summary("g", 0, 0.95, twin="i", hidden=static, clients=[[[0.95]]]),
            summary("i", 0, 0.5, hidden=drift, clients=[[[0.5]]]),
        ]
    )
    assert found[0]["transfer_gain"]["mean"] == pytest.approx(0.25)
    assert "transfer_gain" not in found[1]


def test_what_clusters_achieved_has_columns_of_its_own():
    concepts = {"ari": 0.9, "ari_least": 0.5, "perfect_rounds": 0.8}
    text = table(
        [
            summary("m", 0, 0.7, concepts={**concepts, "effectiveness": 0.95}),
            summary("f", 0, 0.5, concepts={}),
        ]
    )
    head, _, first, second = text.splitlines()[:4]
    assert head.endswith(
        "| ARI | least ARI | perfect rounds | matching effectiveness |"
    )
    assert first.endswith("| 0.4 MB | 0.900 | 0.500 | 0.800 | 0.950 |")
    assert second.endswith("| 0.4 MB |  |  |  |  |")
    assert "ARI" not in table([summary("f", 0, 0.5, concepts={})])


def test_the_table_shows_the_deviation_over_seeds():
    text = table([summary("a", 0, 0.5), summary("a", 1, 0.7)])
    assert "| a | 0, 1 | 0.600 ± 0.141 | 0.100 ± 0.000 |  |" in text


def test_a_part_of_a_study_can_be_run_and_the_tables_hold_all_that_is_finished(
    tmp_path,
):
    study = study_of("fedavg", "local", seeds=(0, 1))
    run_study(study, tmp_path, Runner(), lambda config: config.run.seed == 1)
    assert "| fedavg | 1 |" in (tmp_path / "table.md").read_text()
    summaries = run_study(
        study, tmp_path, Runner(), lambda config: config.strategy.name == "fedavg"
    )
    assert [(s["label"], s["seed"]) for s in summaries] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("local", 1),
    ]
    assert "| fedavg | 0, 1 |" in (tmp_path / "table.md").read_text()


def test_tables_hold_what_is_finished_also_while_an_early_run_is_missing(tmp_path):
    study = study_of("fedavg", "local")
    run_study(study, tmp_path, Runner(), lambda config: config.strategy.name == "local")

    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, Runner(stop_at=0))
    (row,) = json.loads((tmp_path / "table.json").read_text())
    assert (row["label"], row["seeds"]) == ("local", [0, 1])

    one_more = Runner(stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, one_more)
    found = {r["label"]: r["seeds"] for r in rows_of(tmp_path)}
    assert found == {"fedavg": [0], "local": [0, 1]}


def rows_of(folder):
    return json.loads((folder / "table.json").read_text())


def test_class_incremental_runs_show_the_accuracy_over_all_classes_seen():
    runs = [
        summary("f", 0, 0.5, scenario="class-incremental", sample_accuracy=[0.9, 0.6]),
        summary("f", 1, 0.5, scenario="class-incremental", sample_accuracy=[0.7, 0.4]),
        summary("g", 0, 0.5, scenario="class-incremental", sample_accuracy=[0.7, None]),
    ]
    found = rows(runs)
    assert found[0]["sample_accuracy"]["mean"] == pytest.approx(0.5)
    assert found[0]["mean_sample_accuracy"]["mean"] == pytest.approx(0.65)
    assert found[1]["sample_accuracy"] is None
    head, _, first, second = table(runs).splitlines()[:4]
    assert head.endswith("| model | accuracy over samples | mean over tasks |")
    assert first.endswith("| 0.500 ± 0.141 | 0.650 ± 0.141 |")
    assert second.endswith("|  |  |")


def test_other_scenarios_show_no_accuracy_over_all_classes_seen():
    other = summary("f", 0, 0.5, scenario="overlapped", sample_accuracy=[0.9, 0.6])
    assert "over samples" not in table([other])
    assert "Class-incremental" not in table([other])


def test_accuracies_before_the_aggregation_are_a_column_where_known():
    before = {"average_accuracy": 0.25}
    runs = [summary("f", 0, 0.5, before_aggregation=before), summary("g", 0, 0.5)]
    head, _, first, second = table(runs).splitlines()[:4]
    assert head.endswith("| model | before aggregation |")
    assert first.endswith("| 0.250 |")
    assert second.endswith("|  |")
    assert "before" not in table(runs[1:]).lower().replace("best earlier", "")


def test_two_rows_of_one_title_are_refused(tmp_path):
    (tmp_path / "sweep.toml").write_text(
        "local_only_counterparts = false\n"
        '[[variant]]\nstrategy.name = "fedprox"\nstrategy.mu = 0.1\n'
        '[[variant]]\nstrategy.name = "fedprox"\nstrategy.mu = 0.5\n'
    )
    with pytest.raises(ConfigError, match=r"run.title: got 'fedprox', expected anoth"):
        run_study(read_study(tmp_path / "sweep.toml"), tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("title", ["w/o momentum", "../x", "/x"])
def test_a_run_is_in_the_folder_of_its_study_whatever_its_title(tmp_path, title):
    (tmp_path / "study.toml").write_text(f"[run]\nrun.title = {title!r}\n")
    runs = read_study(tmp_path / "study.toml").runs()

    for config in runs:
        assert run_folder(tmp_path / "out", config).parent == tmp_path / "out"
    assert len({run_folder(tmp_path, config) for config in runs}) == 2


def test_two_titles_that_would_share_a_folder_are_refused(tmp_path):
    (tmp_path / "study.toml").write_text(
        '[[variant]]\nrun.title = "a/b c"\n[[variant]]\nrun.title = "a_b-c"\n'
    )
    with pytest.raises(ConfigError, match=r"run.title: got 'a/b c', expected another"):
        run_study(read_study(tmp_path / "study.toml"), tmp_path / "out", None)
