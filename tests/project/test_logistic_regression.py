"""The rival of exact heads: the same tasks, one after the other, by scikit-learn."""

import importlib
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "logistic_regression"

STUDY = """
seeds = [1, 2]

[run]
data.datasets = "digits"
model.name = "patch-filters"
scenario.clients = 2
scenario.tasks = 2
scenario.max_train_per_class = 20

[[variant]]
strategy.name = "analytic"
"""


def test_a_line_for_each_seed_and_their_mean(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("measure_alone")
    (tmp_path / "digits.toml").write_text(STUDY)

    module.main([str(tmp_path / "digits.toml"), "--data-root", str(tmp_path)])

    one, two, both = capsys.readouterr().out.splitlines()
    found = [float(line.partition(": ")[2]) for line in (one, two)]
    assert [line.partition(":")[0] for line in (one, two)] == ["seed 1", "seed 2"]
    assert all(0.6 < accuracy <= 1 for accuracy in found), found
    mean, sign, spread = both.split()
    assert float(mean) == pytest.approx(sum(found) / 2, abs=0.0006)
    assert sign == "±"
    assert float(spread) == pytest.approx(abs(found[0] - found[1]) / 2**0.5, abs=0.0006)


def test_validation_samples_choose_the_strength_and_are_fitted_then(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("measure_alone")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((40, 30)), [0, 1] * 20
    there, truth = rng.standard_normal((200, 30)), (rng.random(200) < 0.5).astype(int)
    train, valid = (x, labels), (there, [*map(int, truth)])
    scores = [module._model(c).fit(*train).score(*valid) for c in module.STRENGTHS]
    assert len(set(scores)) > 1

    best = module._best(train, valid)

    assert module.STRENGTHS[int(np.argmax(scores))] == best.C
    both = module._model(best.C).fit(np.vstack([x, there]), labels + valid[1])
    np.testing.assert_array_equal(best.coef_, both.coef_)
