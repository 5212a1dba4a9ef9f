"""What a client keeps of old tasks outlives a run that is interrupted."""

import pytest
from resuming import check_resumed, small


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("replay", {"strategy.budget": "fixed"}),
        ("lwf", {}),
        ("icarl", {}),
        ("ss-il", {}),
        ("bic", {"strategy.memory_bytes": 3000}),
    ],
)
def test_a_run_that_is_interrupted_within_a_task_ends_as_if_it_were_not(
    tmp_path, name, more
):
    settings = {
        "strategy": name,
        "dataset": "digits",
        "model": "small",
        "scenario": "class-incremental",
        "model.growing_head": True,
        "max_train_per_class": 20,
        "max_test_per_class": 10,
        "rounds": 2,
        **more,
    }
    # In the second round of the second task.
    check_resumed(tmp_path, small(**settings), 4)
