"""Why a server cannot be reached: each reason is made, and read as a user would."""

import contextlib
import datetime
import http.server
import re
import socket
import ssl
import threading
import time
from email.utils import formatdate

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
)

from fcl_flower.core.processes import free_port
from fcl_flower.deploy import commands, diagnosis
from fcl_flower.deploy.certificates import make_certificates
from fcl_flower.deploy.commands import START_RUN
from fcl_flower.deploy.diagnosis import diagnose_server


class Health(http.server.BaseHTTPRequestHandler):
    status, place, behind = 200, 500, 0

    def do_GET(self):
        self.send_response(self.status if self.path == "/health" else self.place)
        self.end_headers()

    def date_time_string(self, timestamp=None):
        return formatdate(time.time() - self.behind, usegmt=True)

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
def serving(folder=None, status=200, host="localhost", place=500, behind=0):
    """A server, with TLS if it has a folder of certificates; yields HOST:PORT."""
    its = {"status": status, "place": place, "behind": behind}
    handler = type("Answering", (Health,), its)
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
    "impostor: ask the server's owner for its ca.crt, by another way than this server"
)
OTHER_NAME = (
    "the certificate of the server at {server} is not for '127.0.0.2': use a name that "
    "it is for, or make another with fcl certs FOLDER --renew --host 127.0.0.2"
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
        f"no program listens at {server}",
        "start fcl server there, or correct --server",
        True,
    )


def test_a_silent_port_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(diagnosis, "PROBE_SECONDS", 0.2)
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
        f"at {server} clients come in, and no runs",
        "give --server the --control-port of fcl server",
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
        (distrust(62), False, "is not for 'a'"),
        (distrust(64), False, "is not for 'a'"),
    ],
)
def test_all_but_distrust_is_tried_again(error, passes, said):
    server = diagnosis._Server("a:1", "a", 1, None, None)
    found = diagnosis._obstacle(error, server)

    assert said in found.sentence
    assert found.passes is passes


# ---- time


def certify(folder, begins, ends):
    """Give the server in a folder a certificate that is valid between two days."""
    now = datetime.datetime.now(datetime.UTC)
    old = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    builder = builder.not_valid_before(now + datetime.timedelta(begins))
    builder = builder.not_valid_after(now + datetime.timedelta(ends))
    made = builder.sign(key, hashes.SHA384())
    (folder / "server.crt").write_bytes(made.public_bytes(Encoding.PEM))
    times = made.not_valid_before_utc, made.not_valid_after_utc
    return [at.astimezone().isoformat(timespec="seconds") for at in times]


@pytest.mark.parametrize(
    ("valid", "at", "said"),
    [
        (
            (2, 9),
            0,
            "the certificate of the server at {} is valid from {} on, and the clock of "
            "this machine shows {}: let NTP set it",
        ),
        (
            (-9, -2),
            1,
            "the certificate of the server at {} has expired at {}, and the clock of "
            "this machine shows {}: make another where ca.key is, with fcl certs "
            "FOLDER --renew, take it to the server, and start fcl server again",
        ),
    ],
    ids=["not yet valid", "expired"],
)
def test_a_certificate_out_of_its_time_is_no_impostors_and_passes(
    tmp_path, valid, at, said
):
    make_certificates(tmp_path, ["localhost"], 0, 1, overwrite=False)
    times = certify(tmp_path, *valid)
    before = datetime.datetime.now().astimezone().replace(microsecond=0)
    with serving(tmp_path) as server:
        found = diagnose_server(server, tmp_path / "ca.crt")

    assert found.passes
    (shown,) = re.findall(r"machine shows (\S+): ", found.sentence)
    assert found.sentence == said.format(server, times[at], shown)
    clock = datetime.datetime.fromisoformat(shown)
    assert before <= clock <= before + datetime.timedelta(seconds=60)


@pytest.mark.parametrize(
    ("behind", "says"),
    [
        (7, r"is 7 s ahead of that of the server at {} .* refuses 5 s: let NTP set"),
        (-400, r"is 400 s behind that of the server at {} .* refuses 305 s: let NTP"),
        (0, None),
        (3, None),
        (-290, None),
    ],
)
@pytest.mark.parametrize("tls", [True, False])
def test_clocks_that_differ_too_much_are_both_named(certs, behind, says, tls):
    folder = certs / "ours" if tls else None
    authority = folder and folder / "ca.crt"
    with serving(folder, behind=behind) as server:
        found = diagnose_server(server, authority)
        # Who starts runs signs nothing.
        assert diagnose_server(server, authority, START_RUN) is None

    if says is None:
        assert found is None
        return
    assert found.passes
    assert re.search(says.format(server), found.sentence)
    times = re.search(r"\((\S+) here, (\S+) there\)", found.sentence)
    here, there = map(datetime.datetime.fromisoformat, times.groups())
    assert abs((here - there).total_seconds() - behind) <= 1


# ---- HTTP proxies


class Tunnel(http.server.BaseHTTPRequestHandler):
    """An HTTP proxy that knows one server under any name."""

    to = 0

    def do_GET(self):
        place = self.path.partition("//")[2].partition("/")[2]
        found = httpx.get(f"http://localhost:{self.to}/{place}", trust_env=False)
        self.send_response(found.status_code)
        self.end_headers()

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(("localhost", self.to)) as other:
            back = threading.Thread(target=self.copy, args=(other, self.connection))
            back.start()
            self.copy(self.connection, other)
            back.join()
        self.close_connection = True

    @staticmethod
    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def proxy_to(server):
    """An HTTP proxy of this machine; yields its URL."""
    handler = type("To", (Tunnel,), {"to": int(server.rpartition(":")[2])})
    proxy = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://localhost:{proxy.server_port}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


@pytest.fixture
def variables(monkeypatch):
    """Set what the environment says of proxies, and nothing else."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def set_(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize(
    "excepted", ["", "fcl.invalid", "invalid", ".invalid", "l.invalid", "other", "*"]
)
def test_a_server_is_asked_through_the_proxy_by_which_flower_calls_it(
    tmp_path, variables, tls, excepted
):
    make_certificates(tmp_path, ["fcl.invalid"], 0, 1, overwrite=False)
    authority = tmp_path / "ca.crt" if tls else None
    with serving(tmp_path if tls else None) as server, proxy_to(server) as proxy:
        name = f"fcl.invalid:{server.rpartition(':')[2]}"
        variables(**{"https_proxy" if tls else "http_proxy": proxy})
        variables(no_proxy=excepted)
        found = diagnose_server(name, authority)
        variables(no_proxy=commands.environment(tmp_path)["no_proxy"])
        trusted = ssl.create_default_context(cafile=authority) if tls else True
        try:  # as Flower does
            url = f"{'https' if tls else 'http'}://{name}/health"
            called = httpx.get(url, verify=trusted).status_code == 200
        except httpx.ConnectError:
            called = False

    assert (found is None) == called
    assert called == (excepted in ("", "other", "l.invalid"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_programs_of_this_machine_are_called_without_a_proxy(variables, host, tmp_path):
    with serving(host=host) as server:
        variables(http_proxy=f"http://localhost:{free_port()}")
        assert diagnose_server(server, None) is None
        variables(no_proxy=commands.environment(tmp_path)["no_proxy"])
        assert httpx.get(f"http://{server}/health").status_code == 200


@pytest.mark.parametrize("tls", [True, False])
def test_a_proxy_that_is_not_there_is_named(certs, variables, tls):
    port = free_port()
    variable = "https_proxy" if tls else "http_proxy"
    variables(**{variable: f"localhost:{port}"})

    found = diagnose_server("a.invalid:1", certs / "ours" / "ca.crt" if tls else None)

    assert found.passes
    assert found.sentence == (
        f"a.invalid:1 cannot be reached through the HTTP proxy localhost:{port} "
        f"([Errno 111] Connection refused): correct {variable}, or name a.invalid in "
        "no_proxy"
    )


def test_a_proxy_is_told_a_password(variables):
    variables(http_proxy="http://us%40er:pass@proxy:3128")

    found = diagnosis.proxy_of("fl.example.org", 9092, None)

    # RFC 7617: base64 of "us@er:pass"
    expected = {"Proxy-Authorization": "Basic dXNAZXI6cGFzcw=="}
    assert diagnosis._password(found) == expected
