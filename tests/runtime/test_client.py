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
    status = 200
    place = 500

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
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_can_be_used_has_no_obstacle(certs):
    with serving(certs / "ours") as server:
        assert diagnose_server(server, certs / "ours" / "ca.crt") is None
    with serving() as server:
        assert diagnose_server(server, None) is None


def test_a_server_of_another_authority_is_not_trusted(certs):
    authority = certs / "ours" / "ca.crt"
    with serving(certs / "theirs") as server:
        found = diagnose_server(server, authority)

    assert found.sentence == (
        f"the server at {server} has a certificate of another authority than "
        f"{authority}, or is an impostor: copy ca.crt from the server's folder of "
        "certificates"
    )
    assert not found.passes


def test_a_certificate_for_another_name_is_not_trusted(certs):
    with serving(certs / "ours", host="127.0.0.2") as server:
        found = diagnose_server(server, certs / "ours" / "ca.crt")

    assert f"of the server at {server} is not for '127.0.0.2'" in found.sentence
    assert "fcl certs --host 127.0.0.2" in found.sentence
    assert not found.passes


def test_an_expired_certificate_is_named_as_such():
    error = ssl.SSLCertVerificationError()
    error.verify_code = 10

    found = client._obstacle(error, "a:1", "a", None)

    assert "has expired: delete its server.crt" in found.sentence
    assert not found.passes


@pytest.mark.parametrize("tls", [True, False])
def test_a_port_where_nobody_listens_is_tried_again(certs, tls):
    server = f"localhost:{free_port()}"

    found = diagnose_server(server, certs / "ours" / "ca.crt" if tls else None)

    assert found.sentence == (
        f"no program listens at {server}: start fcl server there, or correct --server"
    )
    assert found.passes


def test_a_host_that_nobody_knows_is_named(certs):
    found = diagnose_server("no-such-host.invalid:9092", None)

    assert found.sentence == (
        "no machine is known as 'no-such-host.invalid': correct --server"
    )


def test_a_silent_port_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        found = diagnose_server(server, None)

    assert found.sentence.startswith(f"nothing answers at {server}: ")
    assert found.passes


def test_a_server_without_tls_is_no_server_with_it_and_the_other_way(certs):
    with serving() as server:
        found = diagnose_server(server, certs / "ours" / "ca.crt")
    assert f"listens at {server} does not speak TLS" in found.sentence
    assert "give --insecure if the server" in found.sentence

    with serving(certs / "ours") as server:
        found = diagnose_server(server, None)
    assert f"listens at {server} does not speak HTTP without TLS" in found.sentence
    assert "give --certs if the server" in found.sentence


def test_another_web_server_is_no_server_of_ours():
    with serving(status=404) as server:
        found = diagnose_server(server, None)

    assert f"what listens at {server} is no fcl server (HTTP status 404)" in (
        found.sentence
    )
    assert not found.passes


def test_runs_are_not_started_where_clients_come_in(certs):
    authority = certs / "ours" / "ca.crt"
    with serving(certs / "ours", place=404) as server:
        found = diagnose_server(server, authority, START_RUN)
        assert diagnose_server(server, authority) is None
    with serving(place=405) as other:  # no method of that place
        assert diagnose_server(other, None, START_RUN) is None

    assert found.sentence == (
        f"at {server} clients come in, and no runs: give --server the --control-port "
        "of fcl server"
    )
    assert not found.passes


@pytest.mark.parametrize("status", [500, 502])
def test_a_server_that_is_starting_is_waited_for(status):
    with serving(status=status) as server:
        found = diagnose_server(server, None)

    assert f"the server at {server} is there, but not ready" in found.sentence
    assert found.passes


def test_a_file_that_is_no_certificate_is_named(tmp_path):
    (tmp_path / "ca.crt").write_text("nonsense")

    found = diagnose_server("localhost:1", tmp_path / "ca.crt")

    assert found.sentence.startswith(f"{tmp_path / 'ca.crt'} is no certificate")
    assert not found.passes


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionResetError(), "a:1 does not speak HTTP without TLS"),
        (OSError("no route to host"), "a:1 cannot be reached: no route to host: "),
        (socket.gaierror(), "no machine is known as 'a'"),
    ],
)
def test_what_may_pass_by_itself_is_tried_again(error, said):
    found = client._obstacle(error, "a:1", "a", None)

    assert said in found.sentence
    assert found.passes


@pytest.mark.parametrize("code", [62, 64])  # of a name, and of an address
def test_a_name_and_an_address_that_do_not_match_are_told_alike(code):
    error = ssl.SSLCertVerificationError()
    error.verify_code = code

    found = client._obstacle(error, "a:1", "a", None)

    assert "is not for 'a'" in found.sentence
    assert not found.passes
