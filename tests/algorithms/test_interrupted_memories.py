"""What a client keeps of old tasks outlives a run that is interrupted."""

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny

from fcl_flower.federation.transport import messages


class PulledPlugError(BaseException):
    """Somebody pulled the plug."""


def pull_the_plug(client, message, reply):
    """End the server in the second round of the second task, after one client."""
    trains = message.metadata.message_type == "train" and client == 0
    if trains and messages.decode_request(message.content).stage.round == 4:
        raise PulledPlugError
    return reply


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
    usual = tiny(tmp_path / "a", client_state=str(tmp_path / "ma"), **settings)
    run_in_process(usual)
    broken = tiny(tmp_path / "b", client_state=str(tmp_path / "mb"), **settings)
    with pytest.raises(PulledPlugError):
        run_in_process(broken, tamper=pull_the_plug)
    run_in_process(broken.replace(resume=True))

    assert summary_of(tmp_path / "b") == summary_of(tmp_path / "a")
    assert rounds_of(tmp_path / "b") == rounds_of(tmp_path / "a")
