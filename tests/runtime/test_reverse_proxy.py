"""The reverse proxy before a server of our own that notes what gets through."""

import http.client
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.runtime import reverse_proxy
from fcl_flower.runtime.certificates import Certificates, make_certificates
from fcl_flower.runtime.processes import free_port


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = int(self.headers.get("content-length", 0))
            body = self.rfile.read(size)
            if len(body) < size:
                return  # the sender was cut off
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        answer = b"answer to " + body[:10]
        self.send_response(418)
        self.send_header("x-answer", "yes")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST  # noqa: N815

    def log_message(self, *arguments):
        pass


@pytest.fixture
def superlink():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def door(superlink):
    """The port of a reverse proxy before the SuperLink."""
    port = free_port()
    with reverse_proxy.run_proxy(
        "127.0.0.1", port, f"127.0.0.1:{superlink.server_port}", None
    ):
        yield port


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def test_a_clients_call_passes_whole_and_so_does_its_answer(superlink, door):
    body = bytes(range(256)) * 4000
    headers = {"content-type": "application/x-protobuf", "x-signature": "of mine"}

    status, answer, answered = ask(door, "POST", "/v1/fleet/push-object", body, headers)

    assert (status, answer) == (418, b"answer to " + body[:10])
    assert answered["x-answer"] == "yes"
    ((method, path, seen, received),) = superlink.seen
    assert (method, path, received) == ("POST", "/v1/fleet/push-object", body)
    assert seen["x-signature"] == "of mine"
    assert seen["content-type"] == "application/x-protobuf"
    assert seen["Host"] == f"127.0.0.1:{superlink.server_port}"
    assert seen["accept-encoding"] == "identity"  # what http.client says, alone


def test_a_call_of_unknown_length_passes(superlink, door):
    status, _, _ = ask(
        door, "POST", "/v1/fleet/push-object", iter([b"ab", b"cd"]), {"x": "y"}
    )

    assert status == 418
    assert superlink.seen[0][3] == b"abcd"


def test_the_health_check_passes(superlink, door):
    assert ask(door, "GET", "/health")[0] == 418
    assert ask(door, "HEAD", "/health")[0] == 418
    assert ask(door, "POST", "/health")[0] == 404
    assert [seen[0] for seen in superlink.seen] == ["GET", "HEAD"]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/control/start-run", "/v1/control/register-node", "/docs", "/", ""),
        *("/v1/runtime/acquire-task", "/openapi.json", "/v1/fleet/", "/v1/fleet"),
        *("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"),
        *("/v1/fleet/x/../../control/start-run", "//v1/control/start-run"),
        *("/v1/fleet/x%2f..%2f..%2fcontrol%2fstart-run", "/v1/fleet/x%0a", "/health/x"),
        *("/v1/fleet/a@evil", "/V1/FLEET/pull-messages"),
    ],
)
def test_nothing_else_gets_in(superlink, door, path):
    assert ask(door, "POST", path, b"x")[0] == 404
    assert superlink.seen == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "CONNECT", "OPTIONS"])
def test_a_call_of_another_kind_does_not_get_in(superlink, door, method):
    assert ask(door, method, "/v1/fleet/pull-messages")[0] == 404
    assert superlink.seen == []


def test_what_follows_a_question_mark_stays_outside(superlink, door):
    assert ask(door, "POST", "/v1/fleet/get-run?x=1")[0] == 418
    assert superlink.seen[0][1] == "/v1/fleet/get-run"


def test_a_call_that_is_too_long_is_cut_off(superlink, door, monkeypatch):
    monkeypatch.setattr(reverse_proxy, "MAX_BYTES", 1000)

    assert ask(door, "POST", "/v1/fleet/push-object", bytes(1000))[0] == 418
    assert ask(door, "POST", "/v1/fleet/push-object", bytes(1001))[0] == 413
    assert len(superlink.seen) == 1


def test_one_who_hangs_up_does_no_harm(superlink, door):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", door)) as connection:
            connection.sendall(
                b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n"
                b"content-length: 100\r\n\r\nabc"
            )

    assert ask(door, "POST", "/v1/fleet/get-run", b"after")[0] == 418


def test_a_superlink_that_is_away_is_no_crash():
    port = free_port()
    with reverse_proxy.run_proxy("127.0.0.1", port, f"127.0.0.1:{free_port()}", None):
        assert ask(port, "POST", "/v1/fleet/pull-messages")[0] == 502


def test_an_address_that_is_taken_is_named(superlink):
    place = f"127.0.0.1:{superlink.server_port}"
    expected = f"port: got '{place}', expected an address"

    with (
        pytest.raises(ConfigError, match=expected),
        reverse_proxy.run_proxy("127.0.0.1", superlink.server_port, place, None),
    ):
        pass


def test_a_key_of_another_certificate_is_refused(tmp_path):
    for name in ("one", "other"):
        make_certificates(tmp_path / name, ["localhost"], 0, 1, overwrite=False)
    one, other = Certificates(tmp_path / "one"), Certificates(tmp_path / "other")
    files = reverse_proxy.ServerFiles(one.authority, one.server, other.server_key)

    with (
        pytest.raises(
            ConfigError, match=r"certs: .*other/server\.key', expected certificates"
        ),
        reverse_proxy.run_proxy("127.0.0.1", free_port(), "127.0.0.1:1", files),
    ):
        pass


def test_the_proxy_closes():
    port = free_port()
    with reverse_proxy.run_proxy("127.0.0.1", port, "127.0.0.1:1", None):
        pass

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_both_ends_of_the_proxy_are_authenticated(superlink, tmp_path):
    make_certificates(tmp_path, ["localhost"], 0, 1, overwrite=False)
    files = Certificates(tmp_path)
    of_superlink = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_superlink.load_cert_chain(files.server, files.server_key)
    superlink.socket = of_superlink.wrap_socket(superlink.socket, server_side=True)
    port = free_port()
    tls = reverse_proxy.ServerFiles(files.authority, files.server, files.server_key)
    trusting = ssl.create_default_context(cafile=files.authority)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT

    with reverse_proxy.run_proxy(
        "127.0.0.1", port, f"127.0.0.1:{superlink.server_port}", tls
    ):
        connection = http.client.HTTPSConnection("localhost", port, context=trusting)
        connection.request("POST", "/v1/fleet/get-run", b"")
        assert connection.getresponse().status == 418
        connection.close()
        strange = http.client.HTTPSConnection("localhost", port)
        with pytest.raises(ssl.SSLCertVerificationError):
            strange.request("GET", "/health")
