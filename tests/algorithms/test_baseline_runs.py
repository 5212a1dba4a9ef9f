"""Whole runs of FedWeIT's baselines: ended and resumed, asynchronous, as compared."""

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from resuming import check_resumed, small

pytestmark = pytest.mark.run

FEW = {"strategy.fisher_examples": 10}
SETTINGS = {
    "stable-sgd": {},
    "fedprox-ssgd": {},
    "fedprox-ewc": FEW,
    "scaffold": {},
    "fedcurv": FEW,
}


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path, name):
    given = {"strategy.name": name, **SETTINGS[name]}
    check_resumed(tmp_path, small(**given), 2)


@pytest.mark.parametrize("name", ["scaffold", "fedcurv"])
def test_without_rounds_each_update_counts_as_it_comes(tmp_path, name):
    given = {"strategy.name": name, **SETTINGS[name], "rounds": 2}
    given |= {"asynchronous": True, "simulated_durations": "1,3"}
    run_in_process(tiny(tmp_path, **given))

    assert not any(row["failed"] for row in rounds_of(tmp_path))
    assert summary_of(tmp_path)["average_accuracy"] > 0.6


@pytest.mark.soak
def test_ewc_without_federation_holds_a_client_to_its_own_old_tasks(tmp_path):
    def scores(**strategy):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run_in_process(
            tiny(folder, strategy={**strategy, "local_only": True}, rounds=2)
        )
        return summary_of(folder)["client_accuracy"]

    alone = scores(name="fedavg")
    assert scores(name="ewc", strength=0.0) == alone
    assert scores(name="ewc", strength=1e4) != alone
