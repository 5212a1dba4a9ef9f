"""The rival of exact heads: the same tasks, one after the other, by scikit-learn."""

import importlib
from pathlib import Path

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
    assert both.startswith(f"{sum(found) / 2:.2f}"[:3])
    assert " ± " in both
