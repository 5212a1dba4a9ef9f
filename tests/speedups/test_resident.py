"""A SuperNode's messages are answered, by workers that last and workers that do not.

The SuperNode's side is Flower's own; the apps bring their own code.
"""

import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from datetime import timedelta

import httpx
import psutil
import pytest
from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import in_memory_corestate as corestate
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.run import RunNotRunningException
from supernodes import SECRET, shipped, supernode

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.processes import free_port, start_guarded, stop_guarded
from fcl_flower.deploy.commands import client_program
from fcl_flower.deploy.speedups import resident as module
from fcl_flower.deploy.speedups.resident import Executor
from fcl_flower.deploy.speedups.worker import OURS

pytestmark = pytest.mark.process

OWN = shipped(OURS)


def children():
    """Return what this process has started; a pool of another test may go on."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    with supernode() as found:
        yield found


@pytest.fixture
def executor(node):
    before = children()
    with closing(Executor(node.address, SECRET)) as found:
        yield found
    assert children() == before


def asked(node, executor, run, deed="", **how):
    """Return the answer to a question, of which there is one alone."""
    node.ask(run, deed, **how)
    assert executor.look()
    return node.told()


def failed(node, executor, run, deed, **how):
    """Return the sentence by which a question is answered."""
    node.ask(run, deed, **how)
    assert executor.look()
    return node.reply().error.reason


def test_a_worker_answers_all_messages_of_a_run(node, executor):
    node.begin(1, OWN)

    first, second = (asked(node, executor, 1) for _ in range(2))

    assert second["process"] == first["process"]
    assert (first["answered"], second["answered"]) == (1, 2)
    # What the client keeps goes through the SuperNode, as ever.
    assert (first["count"], second["count"]) == (1, 2)


def test_there_is_nothing_to_do_without_a_message(node, executor):
    node.begin(1, OWN)

    assert not executor.look()


def test_a_run_finds_nothing_of_another(node, executor):
    before = children()
    for run in (1, 2):
        node.begin(run, OWN)

    found = [asked(node, executor, run) for run in (1, 2, 1)]

    assert len({one["process"] for one in found}) == 3
    assert [one["answered"] for one in found] == [1, 1, 1]
    assert [one["count"] for one in found] == [1, 1, 2]
    assert len(children() - before) == 1


def test_the_code_that_a_run_brings_is_what_runs(node, executor, tmp_path):
    node.begin(1, OWN)

    found = asked(node, executor, 1)

    assert found["code"].startswith(str(tmp_path / "flower"))


def test_an_app_of_others_has_a_process_for_each_message(node, executor):
    node.begin(1, shipped("theirs:app"))

    first, second = (asked(node, executor, 1) for _ in range(2))

    assert first["process"] != second["process"]
    assert second["answered"] == 1


@pytest.mark.parametrize(
    ("deed", "how"),
    [("die", "by SIGKILL, as for want of memory"), ("leave", "with code 5")],
)
def test_a_worker_that_ends_is_answered_for_and_followed_by_another(
    node, executor, deed, how
):
    node.begin(1, OWN)
    before = asked(node, executor, 1)

    reason = failed(node, executor, 1, deed)

    assert reason == f"the client's worker ended {how}; the next message gets another"
    after = asked(node, executor, 1)
    assert after["process"] != before["process"]
    assert after["count"] == before["count"] + 1


def test_a_worker_that_was_killed_between_two_messages_is_answered_for(node, executor):
    node.begin(1, OWN)
    psutil.Process(asked(node, executor, 1)["process"]).kill()

    assert "ended by SIGKILL" in failed(node, executor, 1, "")
    assert asked(node, executor, 1)["answered"] == 1


def test_a_worker_that_hangs_is_ended_when_the_server_waits_no_longer(node, executor):
    node.begin(1, OWN)
    hanging = asked(node, executor, 1)["process"]
    began = time.monotonic()

    reason = failed(node, executor, 1, "hang", ttl=2.0)

    assert 2.0 <= time.monotonic() - began < 30
    assert reason.startswith("the client's worker did not answer in 2 s and was ended")
    assert not psutil.pid_exists(hanging)


def test_a_worker_that_cannot_start_is_answered_for(node, executor, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    node.begin(1, OWN)

    reason = failed(node, executor, 1, "")

    assert reason.startswith("the client's worker ended with code 1;")


@pytest.mark.parametrize(
    ("fab", "reason"),
    [
        (OWN, "<class 'ValueError'>:<'as it happens'>"),
        (
            shipped("theirs:missing", "other = 1"),
            "An exception was raised when attempting to load `ClientApp`",
        ),
        (
            shipped("theirs:app", "import nothing_like_it"),
            "<class 'ModuleNotFoundError'>:<'No module named 'nothing_like_it''>",
        ),
    ],
    ids=["raises", "has no app", "cannot be imported"],
)
def test_an_app_that_fails_is_answered_for_as_flower_does(node, executor, fab, reason):
    node.begin(1, fab)

    assert failed(node, executor, 1, "raise") == reason
    (task,) = node.state.get_tasks()
    assert (task.status.sub_status, task.status.details) == ("failed", reason)


def test_the_worker_of_an_app_that_failed_is_followed_by_another(node, executor):
    node.begin(1, OWN)
    before = asked(node, executor, 1)["process"]
    failed(node, executor, 1, "raise")

    assert asked(node, executor, 1)["process"] != before


def test_an_app_that_was_installed_in_part_is_installed_anew(node, executor, tmp_path):
    for run in (1, 2):
        node.begin(run, OWN)
    asked(node, executor, 1)
    (app,) = (tmp_path / "flower" / "apps").iterdir()
    (app / "pyproject.toml").write_text("")

    assert "attempting to load" in failed(node, executor, 2, "")
    assert asked(node, executor, 2)["answered"] == 1


@contextmanager
def sent(node, send):
    """Let a SuperNode wait for an answer and send it, as long as the block lasts."""
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(node.send, send)
        yield sending
        wait([sending], 30)
        if not sending.done():
            node.state.object_store.clear()  # so that it waits no longer
            pytest.fail("the SuperNode waits for an answer without end")


def test_the_answer_of_a_run_that_was_stopped_is_not_followed_by_an_error(
    node, executor, monkeypatch
):
    """A second answer would be taken for the answer to the next message."""
    node.begin(1, OWN)
    before = asked(node, executor, 1)
    store_object = node.state.store_object

    def refuse(*message):
        raise RunNotRunningException

    with sent(node, refuse) as sending:

        def late(*given):
            wait([sending], 30)
            return store_object(*given)

        monkeypatch.setattr(node.state, "store_object", late)
        node.ask(1)
        assert executor.look()
    monkeypatch.undo()

    assert not node.state.get_messages_legacy(is_reply=True)
    after = asked(node, executor, 1)
    assert (after["process"], after["answered"]) == (before["process"], 3)


def test_a_worker_outlives_a_heartbeat_that_is_slow(node, executor, monkeypatch):
    """Flower ends a process of which a heartbeat arrives after its task."""
    node.begin(1, OWN)
    before = asked(node, executor, 1)
    beat = node.state.acknowledge_task_heartbeat

    def slow(task):
        time.sleep(1.0)
        return beat(task)

    with monkeypatch.context() as patched:
        patched.setattr(node.state, "acknowledge_task_heartbeat", slow)
        asked(node, executor, 1)

    assert asked(node, executor, 1)["process"] == before["process"]


def test_nobody_waits_for_the_rest_of_an_answer_whose_worker_was_killed(
    node, executor, monkeypatch
):
    node.begin(1, OWN)
    doomed = psutil.Process(asked(node, executor, 1)["process"])

    def killed(*given):
        doomed.kill()
        return False

    def taken(message, tree, seconds):
        return {tree.object_id for tree in iterate_object_tree(tree)}, "session"

    with sent(node, taken) as sending, monkeypatch.context() as patched:
        patched.setattr(node.state, "store_object", killed)
        node.ask(1)
        assert executor.look()
    assert all(content is None for *_, content in sending.result())

    assert not node.state.get_messages_legacy(is_reply=True)
    assert asked(node, executor, 1)["answered"] == 1


def test_an_answer_of_which_nothing_has_come_is_left_to_the_supernode(
    node, executor, monkeypatch
):
    node.begin(1, OWN)
    doomed = psutil.Process(asked(node, executor, 1)["process"])

    def killed(*given):
        doomed.kill()
        return False, []

    with monkeypatch.context() as patched:
        patched.setattr(node.state, "store_message_and_object_tree", killed)
        node.ask(1)
        assert executor.look()
    assert not node.state.get_messages_legacy(is_reply=True)
    monkeypatch.setattr(corestate, "now", lambda: now() + timedelta(minutes=2))

    assert node.reply().error.reason == "ClientApp stopped responding."


def test_a_worker_whose_message_nobody_waits_for_ends_with_a_sentence(
    node, executor, capfd
):
    """Its task is finished from the other side, as where its run was stopped."""
    node.begin(1, OWN)
    asked(node, executor, 1)
    node.offer(1)
    (task,) = node.state.get_tasks(statuses=[Status.PENDING])
    over = [task.task_id, SubStatus.FAILED, ""]
    stopping = threading.Timer(1.0, node.state.finish_task, over)
    stopping.start()

    assert executor.look()

    stopping.join()
    said = capfd.readouterr().err
    assert "the SuperNode waits for the answer to this message no longer" in said
    assert "Traceback" not in said
    assert asked(node, executor, 1)["answered"] == 1


def test_a_message_that_is_stored_after_its_task_is_answered(node, executor):
    """Flower's SuperNode offers a task, and stores the message then."""
    node.begin(1, OWN)
    asked(node, executor, 1)
    node.offer(1)
    later = threading.Timer(1.0, node.store, [1, "", 600.0])
    later.start()

    assert executor.look()

    later.join()
    assert node.told()["answered"] == 2


def test_an_agent_is_refused_in_a_sentence(node, executor):
    node.begin(1, OWN)

    reason = failed(node, executor, 1, "", kind=TaskType.AGENT_APP)

    assert reason.startswith("this client runs client apps alone, expected")


def test_a_worker_without_work_is_ended(node, executor, monkeypatch):
    node.begin(1, OWN)
    process = asked(node, executor, 1)["process"]

    assert executor.rest() == module.QUICK
    assert psutil.pid_exists(process)
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.0)
    assert executor.rest() == module.SLOW
    assert psutil.pid_exists(process)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    executor.rest()
    assert not psutil.pid_exists(process)
    assert asked(node, executor, 1)["answered"] == 1


def test_who_does_not_know_the_secret_gets_no_message(node):
    node.begin(1, OWN)
    node.ask(1)

    with (
        closing(Executor(node.address, b"a guess")) as stranger,
        pytest.raises(httpx.HTTPStatusError, match="401"),
    ):
        stranger.look()


def test_a_supernode_that_is_not_there_yet_is_waited_for():
    with closing(Executor("127.0.0.1:1", SECRET)) as early:
        assert not early.look()


# ---- a SuperNode and its executor are one program


SUPERNODE = ["flower-supernode", "--host", "127.0.0.1", "--port", "7"]
BREAKS = """
import http.server, sys
class Broken(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(500)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[4])), Broken).serve_forever()
"""


def run(folder, source, port=1):
    """Run a script in the place of a SuperNode; return its end and what was said."""
    script = folder / "flower-supernode"
    script.write_text(source)
    command = [str(script), "--host", "127.0.0.1", "--port", str(port)]
    program = client_program(command, ["resident"])
    guardian = start_guarded(program, os.environ, subprocess.PIPE)
    with guardian.stdout as said:
        lines = said.read().decode().splitlines()
    stop_guarded(guardian)
    return guardian.returncode, lines


def test_the_program_ends_with_the_supernode_and_has_its_code(tmp_path):
    assert run(tmp_path, "import sys; sys.exit(7)") == (7, [])


def test_a_supernode_that_was_killed_shows_in_the_code(tmp_path):
    assert run(tmp_path, "import os; os.kill(os.getpid(), 9)") == (128 + 9, [])


def test_the_supernode_has_a_secret_and_leaves_its_messages_to_others(tmp_path):
    code, lines = run(
        tmp_path,
        "import pathlib, sys; print(*sys.argv[5:8], sys.argv[8][:8]);"
        "print(len(pathlib.Path(sys.argv[8]).read_bytes()))",
    )

    assert lines == [
        "--isolation process --superexec-auth-secret-file /dev/fd/",
        "32",
    ]
    assert code == 0


def test_an_executor_that_fails_takes_the_supernode_with_it(tmp_path):
    """A SuperNode whose messages nobody answers would seem to work."""
    code, lines = run(tmp_path, BREAKS, free_port())

    assert code == 1
    assert "500 Internal Server Error" in "\n".join(lines)


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ([], "127.0.0.1:7"),
        (["--port", "9094"], "127.0.0.1:9094"),
        (["--port=9094", "--host", "0.0.0.0"], "127.0.0.1:9094"),
        (["--host", "::"], "[::1]:7"),
        (["--host", "10.0.0.3", "--max-retries", "1"], "10.0.0.3:7"),
    ],
)
def test_the_executor_looks_where_the_supernode_listens(more, address):
    command = client_program([*SUPERNODE, *more], ["resident"])

    at = command.index("flower-supernode")
    assert command[at - 1] == address
    assert command[at:] == [*SUPERNODE, *more, "--isolation", "process"]


@pytest.mark.parametrize(
    "more",
    [
        ["--isolation", "subprocess"],
        ["--isolation=process"],
        ["--superexec-auth-secret-file", "x"],
        ["--ssl-certfile", "x"],
    ],
    ids=" ".join,
)
def test_what_leaves_no_place_for_a_worker_is_refused(more):
    option = more[0].partition("=")[0]

    with pytest.raises(ConfigError, match=f"^{option}: got .*, expected none"):
        client_program([*SUPERNODE, *more], ["resident"])
