"""What a client's labels have cost, over rounds that are asked for twice."""

import contextlib

import pytest
from fakes import asked_in, failure, run_in_process, summary_of, tiny

from fcl_flower.simulation import in_process

TOLD = {"groups": 1, "distribution": "noised", "entropy": "noised", "noise": 5.0}


def label_epsilon(folder, repeated):
    """Return what client 0 says at the end, whose second round is asked for again."""
    lost = []

    def lose(client, request, reply):
        if client == 0 and repeated and asked_in(request, 2) and not lost:
            lost.append(request)
            return failure(request, "the connection was lost")
        return reply

    config = tiny(
        folder,
        strategy={"name": "fedet", **TOLD},
        datasets="digits",
        model="small",
        rounds=2,
        tasks=1,
        min_updates=2,
        max_train_per_class=20,
        classes_per_task=0,
        client_state=str(folder / "states"),
    )
    run_in_process(config, tamper=lose)
    return summary_of(folder)["label_epsilon"]["0"]


@pytest.mark.run
def test_noise_that_is_drawn_anew_is_paid_for(tmp_path, monkeypatch):
    once = label_epsilon(tmp_path / "once", repeated=False)
    again = label_epsilon(tmp_path / "simulated", repeated=True)
    assert again == pytest.approx(once), "a simulation draws the same noise again"

    monkeypatch.setattr(in_process, "simulated", contextlib.nullcontext)
    assert label_epsilon(tmp_path / "real", repeated=True) > 1.1 * once
