"""The command that takes a client out of a run."""

import sys

import numpy as np
import pytest
from analytic_cases import start
from fakes import failure, rounds_of, run_in_process

from fcl_flower.rounds.checkpoint import FolderStateStore

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]


def test_forgotten_from_the_command_line(tmp_path, fcl):
    run_in_process(start(tmp_path / "run"))
    answer = fcl("forget", "run", "--client", "1", "--task", "2")
    assert answer.code == 0
    assert "forgotten: task 2 of client 1, after round 3" in answer.out
    assert "not forgotten: what clients received before" in answer.out
    without = fcl("forget", "run", "--client", "1")
    assert without.code == 0
    # Neither the state nor the version before it has anything left of the client.
    files = sorted((tmp_path / "run" / "checkpoint").iterdir())
    assert len(files) == 1
    saved = FolderStateStore(tmp_path / "run" / "checkpoint").load(before=sys.maxsize)
    clients = {group.split("/")[1] for group in saved.state if "sums/" in group}
    assert clients == {"0", "2"}
    (path,) = files
    assert "sums/1/" not in path.read_text(errors="ignore")


def test_the_forgotten_client_was_never_there(tmp_path, fcl):
    run_in_process(start(tmp_path / "run"))
    fcl("forget", "run", "--client", "2")
    states = FolderStateStore(tmp_path / "run" / "checkpoint").load(sys.maxsize)

    def refuse(client, request, reply):
        is_training = request.kind == "train"
        return failure(request, "away") if client == 2 and is_training else reply

    run_in_process(start(tmp_path / "never"), tamper=refuse)
    never = FolderStateStore(tmp_path / "never" / "checkpoint").load(sys.maxsize)
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(
            states.state["head"][name], never.state["head"][name]
        )


def test_a_run_goes_on_with_what_is_left(tmp_path, fcl):
    folder, states = tmp_path / "run", str(tmp_path / "states")

    def stop(client, request, reply):
        if (folder / "rounds.jsonl").exists() and len(rounds_of(folder)) == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        run_in_process(start(folder, client_state=states), tamper=stop)
    assert fcl("forget", "run", "--client", "0").code == 0
    run_in_process(start(folder, client_state=states, resume=True))
    saved = FolderStateStore(folder / "checkpoint").load(before=sys.maxsize)
    of_client = sorted(g for g in saved.state if g.startswith("sums/0/"))
    assert [group.split("/")[2] for group in of_client] == ["2"]


def test_nothing_is_forgotten_while_a_server_works_on_the_run(tmp_path, fcl):
    answers = []

    def meanwhile(client, request, reply):
        if (tmp_path / "run" / "checkpoint").is_dir() and not answers:
            answers.append(fcl("forget", "run", "--client", "0"))
        return reply

    run_in_process(start(tmp_path / "run"), tamper=meanwhile)
    answers[0].is_refusal("folder: got 'run'", "no other run or command works now")
    assert fcl("forget", "run", "--client", "0").code == 0, "the run has ended"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--client", "9"], ["client: got 9", "[0, 1, 2]"]),
        (["run", "--client", "1", "--task", "7"], ["task 7 of client: got 1"]),
        (["run", "--client", "-1"], ["-1"]),
        (["nothing", "--client", "1"], ["folder: got 'nothing'", "config.toml"]),
        (["run"], ["--client"]),
    ],
)
def test_what_cannot_be_forgotten_is_said_in_a_sentence(
    tmp_path, fcl, arguments, parts
):
    run_in_process(start(tmp_path / "run", tasks=1))
    fcl("forget", *arguments).is_refusal(*parts)


def test_a_network_cannot_forget(tmp_path, fcl):
    run_in_process(start(tmp_path / "run", tasks=1, strategy="fedavg"))
    refused = ("strategy: got 'FedAvg'", "such as analytic", "cannot be taken out")
    fcl("forget", "run", "--client", "1").is_refusal(*refused)


def test_the_key_of_who_is_forgotten_is_removed_where_that_is_asked_for(tmp_path, fcl):
    run_in_process(start(tmp_path / "run"))
    fcl("certs", "certs", "--host", "localhost", "--clients", "3")
    keys = tmp_path / "certs" / "clients"
    command = ("forget", "run", "--client", "2")
    kept = fcl(*command, "--task", "0", "--certs", "certs")
    kept.is_refusal("certs: got 'certs', expected none with --task")
    other = fcl("forget", "run", "--client", "1")
    assert "client 1 is let in until its clients/client-1.pub is removed" in other.out
    assert (keys / "client-1.pub").exists()
    gone = fcl(*command, "--certs", "certs")
    assert "removed certs/clients/client-2.pub" in gone.out
    assert sorted(path.name for path in keys.glob("*.pub")) == [
        "client-0.pub",
        "client-1.pub",
    ]
    fcl(*command, "--certs", "certs").is_refusal("client-2.pub")
