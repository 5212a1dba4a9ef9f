"""Why a server cannot be reached: each reason is made, and read as a user would."""

import contextlib
import http.server
import socket
import ssl
import threading

import pytest

from fcl_flower.flower.commands import START_RUN
from fcl_flower.runtime import client
from fcl_flower.runtime.certificates import make_certificates
from fcl_flower.runtime.client import diagnose_server
from fcl_flower.runtime.processes import free_port


class Health(http.server.BaseHTTPRequestHandler):
    status, place = 200, 500

    def do_GET(self):
        self.send_response(self.status if self.path == "/health" else self.place)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Certificates of two authorities."""
    place = tmp_path_factory.mktemp("certs")
    for name in ("ours", "theirs"):
        make_certificates(place / name, ["localhost"], 0, 1, overwrite=False)
    return place


@contextlib.contextmanager
def serving(folder=None, status=200, host="localhost", place=500):
    """A server, with TLS if it has a folder of certificates; yields HOST:PORT."""
    handler = type("Answering", (Health,), {"status": status, "place": place})
    server = http.server.ThreadingHTTPServer((host, 0), handler)
    server.handle_error = lambda *_: None  # of a caller that hangs up
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


NO_TLS = (
    "what listens at {server} does not speak TLS: correct --server, or give "
    "--insecure if the server was started so"
)
ONLY_TLS = (
    "what listens at {server} does not speak HTTP without TLS: correct --server, or "
    "give --certs if the server was started so"
)
OTHER_AUTHORITY = (
    "the server at {server} has a certificate of another authority than {ca}, or is an "
    "impostor: copy ca.crt from the server's folder of certificates"
)
OTHER_NAME = (
    "the certificate of the server at {server} is not for '127.0.0.2': use a name that "
    "it is for, or make another with fcl certs --host 127.0.0.2"
)
NOT_READY = (
    "the server at {server} is there, but not ready (HTTP status 502): its own log "
    "says why, if it stays so"
)
NO_SERVER = (
    "what listens at {server} is no fcl server (HTTP status 404): correct --server"
)


@pytest.mark.parametrize(
    ("has", "trusts", "how", "passes", "sentence"),
    [
        ("ours", "ours", {}, None, None),
        ("", "", {}, None, None),
        ("theirs", "ours", {}, False, OTHER_AUTHORITY),
        ("ours", "ours", {"host": "127.0.0.2"}, False, OTHER_NAME),
        ("", "ours", {}, True, NO_TLS),
        ("ours", "", {}, True, ONLY_TLS),
        ("", "", {"status": 404}, False, NO_SERVER),
        ("", "", {"status": 502}, True, NOT_READY),
    ],
)
def test_what_listens_is_found_out(certs, has, trusts, how, passes, sentence):
    authority = certs / trusts / "ca.crt" if trusts else None
    with serving(certs / has if has else None, **how) as server:
        found = diagnose_server(server, authority)

    if sentence is None:
        assert found is None
    else:
        assert found.sentence == sentence.format(server=server, ca=authority)
        assert found.passes is passes


@pytest.mark.parametrize("tls", [True, False])
def test_a_port_where_nobody_listens_is_tried_again(certs, tls):
    server = f"localhost:{free_port()}"

    found = diagnose_server(server, certs / "ours" / "ca.crt" if tls else None)

    assert found == (
        f"no program listens at {server}: start fcl server there, or correct --server",
        True,
    )


def test_a_silent_port_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        found = diagnose_server(server, None)

    assert found.sentence.startswith(f"nothing answers at {server}: ")
    assert found.passes


def test_runs_are_not_started_where_clients_come_in(certs):
    authority = certs / "ours" / "ca.crt"
    with serving(certs / "ours", place=404) as server:
        found = diagnose_server(server, authority, START_RUN)
        assert diagnose_server(server, authority) is None
    with serving(place=405) as other:  # no method of that place
        assert diagnose_server(other, None, START_RUN) is None

    assert found == (
        f"at {server} clients come in, and no runs: give --server the --control-port "
        "of fcl server",
        False,
    )


def test_a_file_that_is_no_certificate_is_named(tmp_path):
    (tmp_path / "ca.crt").write_text("nonsense")

    found = diagnose_server("localhost:1", tmp_path / "ca.crt")

    assert found.sentence.startswith(f"{tmp_path / 'ca.crt'} is no certificate")
    assert not found.passes


def distrust(code):
    error = ssl.SSLCertVerificationError()
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("error", "passes", "said"),
    [
        (ConnectionResetError(), True, "a:1 does not speak HTTP without TLS"),
        (OSError("no route"), True, "a:1 cannot be reached: no route: correct --serv"),
        (socket.gaierror(), True, "no machine is known as 'a': correct --server"),
        (distrust(10), False, "has expired: delete its server.crt and make another"),
        (distrust(62), False, "is not for 'a'"),
        (distrust(64), False, "is not for 'a'"),
    ],
)
def test_all_but_distrust_is_tried_again(error, passes, said):
    found = client._obstacle(error, "a:1", "a", None)

    assert said in found.sentence
    assert found.passes is passes
