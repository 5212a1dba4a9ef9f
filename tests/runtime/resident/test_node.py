"""A SuperNode and its executor are one program; the SuperNode is a script here."""

import os
import subprocess
import sys

import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.flower.commands import with_worker
from fcl_flower.runtime.processes import free_port, start_guarded, stop_guarded

pytestmark = pytest.mark.process

SUPERNODE = ["flower-supernode", "--host", "127.0.0.1", "--port", "7"]
BREAKS = """
import http.server, sys
class Broken(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(500)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[4])), Broken).serve_forever()
"""


def run(source, port=1):
    """Run a script in the place of a SuperNode; return its end and what was said."""
    command = [sys.executable, "-c", source, "--host", "127.0.0.1", "--port", str(port)]
    guardian = start_guarded(with_worker(command), os.environ, subprocess.PIPE)
    with guardian.stdout as said:
        lines = said.read().decode().splitlines()
    stop_guarded(guardian)
    return guardian.returncode, lines


def test_the_program_ends_with_the_supernode_and_has_its_code():
    assert run("import sys; sys.exit(7)") == (7, [])


def test_a_supernode_that_was_killed_shows_in_the_code():
    assert run("import os; os.kill(os.getpid(), 9)") == (128 + 9, [])


def test_the_supernode_has_a_secret_and_leaves_its_messages_to_others():
    code, lines = run(
        "import pathlib, sys; print(*sys.argv[5:8], sys.argv[8][:8]);"
        "print(len(pathlib.Path(sys.argv[8]).read_bytes()))"
    )

    assert lines == [
        "--isolation process --superexec-auth-secret-file /dev/fd/",
        "32",
    ]
    assert code == 0


def test_an_executor_that_fails_takes_the_supernode_with_it():
    """A SuperNode whose messages nobody answers would seem to work."""
    code, lines = run(BREAKS, free_port())

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
    command = with_worker([*SUPERNODE, *more])

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
        with_worker([*SUPERNODE, *more])
