import json

import pytest
from fakes import run_in_process, tiny

from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.runtime.study import Choice, Row, Study, read_study
from fcl_flower.runtime.study_runs import settle

EPOCHS = ({"training.epochs": 1}, {"training.epochs": 2})


class Pretended:
    """Small runs, of which a test says with what accuracy they end."""

    def __init__(self, accuracy, fails=()):
        self.accuracy = accuracy
        self.fails = fails
        self.ran = []

    def __call__(self, jobs):
        for job in jobs:
            config = job.run.config
            self.ran.append((config.title, config.run.seed, config.data.datasets))
            if config.title in self.fails:
                yield job, RoundError("no replies")
                continue
            job.folder.mkdir(parents=True, exist_ok=True)
            run_in_process(config.replace(output=str(job.folder)))
            path = job.folder / "summary.json"
            found = json.loads(path.read_text())
            found["average_accuracy"] = self.accuracy(config)
            path.write_text(json.dumps(found))
            yield job, found


def row(name, candidates=EPOCHS, **values):
    plain = tiny("", strategy=name, tasks=1, rounds=1, **values)
    return Row(plain.replace(output=""), candidates)


def study_of(*rows, counterparts=False):
    choice = Choice(rows, (7, 8), counterparts)
    variants = choice.settled({one.config.title: {} for one in rows})
    return Study(variants, (1,), choice)


def titles(study):
    return [variant.title for variant in study.variants]


def epochs(config):
    return config.training.epochs


def test_the_best_candidate_of_each_row_is_taken(tmp_path):
    study = study_of(row("fedprox"), row("fedavg"), row("stl", ()))

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
    study = study_of(row("stl"))
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
    study = study_of(row("stl"), row("local"))
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
    study = study_of(row("ewc"), counterparts=True)
    assert titles(study) == ["ewc", "ewc local-only"]
    runs = Pretended(epochs)
    settled = settle(study, tmp_path, runs, ["ewc local-only"])
    assert [(v.title, epochs(v)) for v in settled.variants] == [
        *(("ewc", 2), ("ewc local-only", 2))
    ]
    assert len(runs.ran) == 4


def test_rows_that_are_not_wanted_wait(tmp_path):
    study = study_of(row("stl"), row("local"), row("fedavg", ()))
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
    study = study_of(row("stl"), row("fedavg", ()))
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
        settle(study_of(silent), tmp_path, runs, ["stl"])
    assert not runs.ran


def test_a_candidate_that_ends_without_an_accuracy_is_named(tmp_path):
    runs = Pretended(lambda config: None if epochs(config) == 2 else 0.5)
    with pytest.raises(RoundError, match="stl epochs=2 seed 7 ended without an accu"):
        settle(study_of(row("stl")), tmp_path, runs, ["stl"])
    assert not (tmp_path / "chosen.json").exists()


def test_a_choice_goes_on_where_it_was_stopped(tmp_path):
    study = study_of(row("stl"))
    failing = Pretended(epochs, fails=["stl epochs=2"])
    with pytest.raises(RoundError, match="2 of 4 runs failed"):
        settle(study, tmp_path, failing, ["stl"])
    assert not (tmp_path / "chosen.json").exists()

    rest = Pretended(epochs)
    settled = settle(study, tmp_path, rest, ["stl"])
    assert {title for title, _, _ in rest.ran} == {"stl epochs=2"}
    assert [epochs(v) for v in settled.variants] == [2]


def test_a_wrong_row_is_told_before_anything_runs(tmp_path):
    study = study_of(row("stl"), row("fedavg", (), classes_per_task=11))
    runs = Pretended(epochs)
    with pytest.raises(ConfigError, match="0 groups of 11 classes"):
        settle(study, tmp_path, runs, titles(study))
    assert not runs.ran


def test_what_suits_the_data_is_what_the_table_has(tmp_path):
    """Held-out digits have another name, but the network of digits."""
    models = []
    runs = Pretended(lambda config: models.append(config.model.name) or 0.5)
    config = row("stl").config.replace(model="")
    settle(study_of(Row(config, EPOCHS)), tmp_path, runs, ["stl"])
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
