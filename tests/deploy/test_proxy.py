"""The reverse proxy before a server of our own that notes what gets through."""

import asyncio
import contextlib
import errno
import http.client
import json
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.processes import free_port
from fcl_flower.deploy.certificates import Certificates, make_certificates
from fcl_flower.deploy.http import RESERVED, Bounds, Caller
from fcl_flower.deploy.node_auth import NodeKeys
from fcl_flower.deploy.proxy import (
    Connections,
    ReverseProxy,
    listening,
    network,
    run_proxy,
)

BOUNDS = Bounds(head_seconds=1, idle_seconds=1, answer_seconds=2, body_bytes=2**23)
POST = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := self.rfile.readline():
                if size == b"0\r\n":
                    break
                body += self.rfile.read(int(size, 16))
                self.rfile.readline()
            else:
                return  # as below
            self.rfile.readline()
        else:
            size = int(self.headers.get("content-length", 0))
            body = self.rfile.read(size)
            if len(body) < size:
                return  # the sender was cut off
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.command, self.path, headers, body))
        time.sleep(self.server.pause)
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
    server.seen, server.pause = [], 0
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@contextlib.contextmanager
def proxy(superlink, keys=None, files=None, **bounds):
    """Yield the port of a reverse proxy before a SuperLink, given by its port."""
    port, place = free_port(), f"127.0.0.1:{superlink}"
    with (
        listening("127.0.0.1", port, files) as listener,
        run_proxy(listener, place, keys, replace(BOUNDS, **bounds), print),
    ):
        yield port


@pytest.fixture
def door(superlink):
    with proxy(superlink.server_port) as port:
        yield port


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["localhost"], 0, 1, overwrite=False)
    return Certificates(folder)


def ask(
    port, method="POST", path="/v1/fleet/get-run", body=b"x", headers=None, seconds=5
):
    # Closed even where the call is refused before all of it was sent.
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    ) as connection:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def status(*given, **more):
    return ask(*given, **more)[0]


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def closed(connection):
    """Whether the other side ends a connection, by whatever way."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def said_of(port, *parts):
    """Say parts with pauses; return all that is answered until the connection ends."""
    with connected(port) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                time.sleep(0.1)
            while piece := connection.recv(2**16):
                answer += piece
    return answer


# ---- calls of clients


def test_a_clients_call_passes_whole_and_so_does_its_answer(superlink, door):
    body = bytes(range(256)) * 4000
    headers = {"content-type": "application/x-protobuf", "x-signature": "of mine"}
    path, upgrade = "/v1/fleet/push-object", {"connection": "upgrade", "upgrade": "x"}

    found, answer, answered = ask(
        door, "POST", path + "?x=1", body, {**headers, **upgrade}
    )

    assert (found, answer) == (418, b"answer to " + body[:10])
    assert answered["x-answer"] == "yes"
    ((method, seen_path, seen, received),) = superlink.seen
    assert (method, seen_path, received) == ("POST", path, body)
    assert seen.items() >= headers.items()
    assert seen["host"] == f"127.0.0.1:{superlink.server_port}"
    assert seen["accept-encoding"] == "identity"  # what http.client says, alone
    assert "upgrade" not in seen


def test_many_calls_pass_on_one_connection_and_one_of_unknown_length(superlink, door):
    connection = http.client.HTTPConnection("127.0.0.1", door, timeout=5)
    for number in range(30):
        connection.request("POST", "/v1/fleet/get-run", b"%d" % number)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (418, b"answer to %d" % number)
    connection.close()
    assert status(door, body=iter([b"ab", b"cd"])) == 418
    assert superlink.seen[-1][3] == b"abcd"


def test_the_health_check_is_the_superlinks_and_made_once_a_second(superlink, door):
    for _ in range(10):
        assert status(door, "GET", "/health") == 418
        assert status(door, "HEAD", "/health") == 418
    assert status(door, "POST", "/health") == 404
    assert {seen[:2] for seen in superlink.seen} == {("GET", "/health")}
    assert len(superlink.seen) < 5


PATHS = [
    *("/v1/control/start-run", "/v1/control/register-node", "/docs", "/", ""),
    *("/v1/runtime/acquire-task", "/openapi.json", "/v1/fleet/", "/v1/fleet"),
    *("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"),
    *("/v1/fleet/x/../../control/start-run", "//v1/control/start-run"),
    *("/v1/fleet/x%2f..%2f..%2fcontrol%2fstart-run", "/v1/fleet/x%0a", "/health/x"),
    *("/v1/fleet/a@evil", "/V1/FLEET/pull-messages"),
]
METHODS = ["GET", "PUT", "DELETE", "CONNECT", "OPTIONS"]


def test_nothing_else_gets_in(superlink, door):
    calls = [("POST", path) for path in PATHS]
    calls += [(method, "/v1/fleet/pull-messages") for method in METHODS]

    found = {call: status(door, *call) for call in calls}

    assert found == dict.fromkeys(calls, 404)
    assert superlink.seen == []


@pytest.mark.process  # which waits for longer than it computes
def test_an_answer_that_takes_long_is_waited_for(superlink):
    superlink.pause = 6  # what httpx would not
    with proxy(superlink.server_port, answer_seconds=60) as door:
        assert status(door, seconds=20) == 418


def test_an_answer_that_does_not_come_may_have_been_handled(superlink):
    superlink.pause = 1
    with proxy(superlink.server_port, answer_seconds=0.2) as door:
        assert status(door) == 504
    with proxy(free_port()) as door:  # the SuperLink is away
        assert status(door) == 502


def test_an_address_that_is_taken_and_a_key_of_another_are_refused(
    superlink, files, tmp_path
):
    make_certificates(tmp_path, ["localhost"], 0, 1, overwrite=False)
    (tmp_path / "server.key").write_bytes(files.server_key.read_bytes())
    taken = superlink.server_port
    for message, place, certificates in (
        (f"port: got '127.0.0.1:{taken}', expected an address", taken, None),
        (r"certs: .*server\.key', expected certificat", 1, Certificates(tmp_path)),
    ):
        with (
            pytest.raises(ConfigError, match=message),
            listening("127.0.0.1", place, certificates),
        ):
            pytest.fail("it listens")


def test_the_proxy_closes():
    with proxy(1) as port:
        silent = connected(port)
        assert status(port, "GET", "/") == 404

    with silent:
        assert closed(silent)
    with pytest.raises(ConnectionRefusedError):
        connected(port)


def test_both_ends_of_the_proxy_are_authenticated(superlink, files):
    of_superlink = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_superlink.load_cert_chain(files.server, files.server_key)
    superlink.socket = of_superlink.wrap_socket(superlink.socket, server_side=True)
    trusting = ssl.create_default_context(cafile=files.authority)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT

    with proxy(superlink.server_port, files=files) as port:
        connection = http.client.HTTPSConnection("localhost", port, context=trusting)
        connection.request("POST", "/v1/fleet/get-run", b"")
        assert connection.getresponse().status == 418
        connection.close()
        strange = http.client.HTTPSConnection("localhost", port)
        with pytest.raises(ssl.SSLCertVerificationError):
            strange.request("GET", "/health")


# ---- callers who mean no good


def test_a_call_of_two_lengths_is_refused(superlink, door):
    two = b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert said_of(door, POST + two).startswith(b"HTTP/1.1 400 ")
    assert superlink.seen == []


def test_a_websocket_is_refused_without_a_traceback(superlink, door, capfd):
    upgrade = (
        b"connection: upgrade, close\r\nupgrade: websocket\r\ncontent-length: 0\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    for head in (b"GET /ws HTTP/1.1\r\nhost: x\r\n", POST):
        answer = said_of(door, head + upgrade)
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 418"))
    assert all("upgrade" not in map(str.lower, s[2]) for s in superlink.seen)
    assert capfd.readouterr() == ("", "")


def test_a_call_that_is_too_long_is_cut_off(superlink):
    with proxy(superlink.server_port, body_bytes=1000) as door:
        assert status(door, body=bytes(1000)) == 418
        assert status(door, body=bytes(1001)) == 413
        assert status(door, body=iter([bytes(500), bytes(501)])) == 413
        answer = said_of(door, POST + b"content-length: 1001\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 "), "a body that is waited for has none"
    assert len(superlink.seen) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"no http at all\r\n\r\n",
        POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        POST + b"x: " + bytes(10) + b"\r\n\r\n",
        POST + b"x: " + b"x" * 2**17 + b"\r\n\r\n",
        POST + b"content-length: 9\r\n\r\nx",
    ],
    ids=lambda said: repr(said[-30:]),
)
def test_what_is_no_call_is_refused_or_cut_off(superlink, door, said, capfd):
    begun = time.monotonic()

    answer = said_of(door, said)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert time.monotonic() - begun < 8
    assert superlink.seen == []
    assert status(door) == 418
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("said", "tls"),
    [(b"", False), (POST, False), (b"\x16\x03\x01\x02\x00\x01", True)],
    ids=["nothing", "half a head", "half a handshake"],
)
def test_a_guest_has_some_seconds_to_say_what_it_wants(superlink, files, said, tls):
    begun = time.monotonic()
    with (
        proxy(superlink.server_port, files=files if tls else None) as door,
        connected(door) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(said)
        while not tls and time.monotonic() - begun < 0.8:
            connection.sendall(b"x")  # a byte now and then is no excuse
            time.sleep(0.1)
        assert closed(connection)
    assert 0.5 < time.monotonic() - begun < 8


def test_a_burst_of_connections_does_not_take_more_descriptors(monkeypatch):
    bounds, port = Bounds(guests=5, guests_of_address=5), free_port()
    accepted, most = [], 0

    async def serve(listener):
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def counted(sock):
            nonlocal most
            accepted.append((await accept(sock))[0])
            most = max(most, sum(one.fileno() != -1 for one in accepted))
            return accepted[-1], ("127.0.0.1", 1)

        monkeypatch.setattr(loop, "sock_accept", counted)
        proxy = ReverseProxy(listener, "127.0.0.1:1", None, bounds, print)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(proxy.serve(), 1)

    with listening("127.0.0.1", port, None) as listener, contextlib.ExitStack() as all_:
        for _ in range(60):
            all_.enter_context(connected(port))
        asyncio.run(serve(listener))
    assert len(accepted) == 60
    assert most < 12


def test_the_oldest_guest_goes_where_a_newcomer_cannot_be_accepted(
    superlink, monkeypatch
):
    """As where the whole machine has no descriptors left."""
    accept, calls = asyncio.SelectorEventLoop.sock_accept, []

    async def accepting(loop, listener):
        calls.append(listener)
        if len(calls) == 2:
            raise OSError(errno.ENFILE, "no descriptors")
        return await accept(loop, listener)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", accepting)
    with proxy(superlink.server_port, head_seconds=60) as port:
        with connected(port) as guest:
            assert closed(guest)
        assert status(port) == 418


def test_calls_beyond_what_one_may_have_at_once_shall_come_again(superlink):
    superlink.pause = 0.7
    with proxy(superlink.server_port, members_of_key=3) as door:
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(status(door)))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [418, 418, 418, 503, 503]
        superlink.pause = 0
        assert status(door) == 418


def test_one_who_takes_no_answer_is_waited_for_some_seconds():
    class Stuck:
        def write(self, data):
            pass

        async def drain(self):
            await asyncio.Event().wait()

    async def refuse():
        caller = Caller(asyncio.StreamReader(), Stuck(), Bounds(idle_seconds=0.05))
        async with asyncio.timeout(10) as longest:
            try:
                await caller.refuse(503)
            finally:
                assert not longest.expired()

    with pytest.raises(TimeoutError):
        asyncio.run(refuse())


# ---- whose calls they are


OURS, STRANGE = generate_key_pairs(), generate_key_pairs()
KEYS = NodeKeys({"client-0": OURS[1]})


def signed(pair):
    request = httpx.Request("POST", "https://x/v1/fleet/get-run")
    context = ProtobufRequestContext("", None, request)
    NodeAuthHttpInterceptor(*pair).intercept(context, lambda call: httpx.Response(200))
    names = {name for name in request.headers if name.startswith("flwr-")}
    return {name: request.headers[name] for name in names}


def test_a_signed_call_passes_with_its_signature_until_its_key_is_taken_away(superlink):
    keys, headers = NodeKeys({"client-0": OURS[1]}), signed(OURS)
    with proxy(superlink.server_port, keys) as door:
        assert status(door, headers=headers) == 418
        keys.replace({})
        assert status(door, headers=headers) == 401
    ((_, _, seen, _),) = superlink.seen
    assert seen.items() >= headers.items()


@pytest.mark.parametrize("headers", [{}, signed(STRANGE)], ids=["none", "strange"])
def test_a_call_of_nobody_known_reaches_nothing(superlink, headers, capfd):
    large = iter([bytes(2**16)] * 16)
    with proxy(superlink.server_port, KEYS) as door:
        for path in ("get-run", "register-node"):
            assert status(door, path=f"/v1/fleet/{path}", headers=headers) == 401
        path = "/v1/fleet/activate-node"
        found, answer, _ = ask(door, path=path, headers=headers)
        with contextlib.suppress(ConnectionError):
            assert status(door, body=large, headers=headers) == 401
    assert superlink.seen == []
    assert found == 412
    reason = json.loads(answer)
    assert (reason["code"], reason["detail"]) == (2004, "Failed to activate SuperNode.")
    (line,) = capfd.readouterr().out.splitlines()  # of four calls in one minute
    assert line == f"not let in: {reason['extra']}, from 127.0.0.1 (1)"


def test_a_member_that_is_silent_between_two_calls_is_let_go(superlink):
    with proxy(superlink.server_port, KEYS, head_seconds=60) as door:
        connection = http.client.HTTPConnection("127.0.0.1", door, timeout=10)
        connection.request("POST", "/v1/fleet/get-run", b"x", signed(OURS))
        assert connection.getresponse().read() == b"answer to x"
        begun = time.monotonic()

        assert closed(connection.sock)

    assert 0.5 < time.monotonic() - begun < 8
    connection.close()


def test_a_client_is_served_beside_many_who_are_silent(superlink):
    """They come from its own address, and again whenever they are sent away."""
    over = threading.Event()

    def hostile(port):
        open_ones = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port), timeout=1)
                one.sendall(POST + b"content-length: 99\r\n")
                open_ones.append(one)
            while len(open_ones) > 150:
                open_ones.pop(0).close()
            time.sleep(0.005)
        for one in open_ones:
            one.close()

    with proxy(superlink.server_port, KEYS, guests=60, guests_of_address=30) as door:
        threads = [threading.Thread(target=hostile, args=(door,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        try:
            for number in range(10):  # each on a connection of its own
                body = b"%d" % number
                found = ask(door, body=body, headers=signed(OURS))
                assert found[:2] == (418, b"answer to " + body)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert [seen[3] for seen in superlink.seen] == [b"%d" % n for n in range(10)]


# ---- what it may hold


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("limit", [128, 256, 4096])
def test_connections_and_all_else_stay_within_the_descriptors(limit, keys):
    bounds = Bounds.of_descriptors(limit, keys=keys)
    # A member may take a second one, to the SuperLink.
    assert bounds.guests + 2 * bounds.members + RESERVED <= limit
    assert 1 <= bounds.guests_of_address <= bounds.guests <= Bounds.guests
    assert bounds.members_of_key >= 1
    assert Bounds.of_descriptors(2**16, keys=True) == Bounds()


RAISED = """
import resource
from fcl_flower.deploy.http import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("soft", "hard", "found"),
    [(256, 1024, (1024, 1024, 1024)), (256, 2**17, (2**16, 2**16, 2**17))],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_allowed(soft, hard, found):
    if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip("this process may not open as many files")
    code = RAISED.replace("SOFT", str(soft)).replace("HARD", str(hard))

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert tuple(map(int, said.stdout.split())) == found


# ---- who has to go


FEW = Bounds(guests=3, guests_of_address=2, members=3, members_of_key=2)


class Served:
    """Stands for the task that serves a connection."""

    cancelled = False

    def cancel(self):
        self.cancelled = True


def arrived(connections, *addresses):
    guests = [Served() for _ in addresses]
    for guest, address in zip(guests, addresses, strict=True):
        connections.admit(guest, address)
    return guests


@pytest.mark.parametrize(
    ("addresses", "gone"), [("abcde", "ab"), ("abbb", "b"), ("abcc", "a"), ("aa", "")]
)
def test_the_oldest_of_all_or_of_its_address_makes_room(addresses, gone):
    connections = Connections(FEW)
    guests = zip(addresses, arrived(connections, *addresses), strict=True)
    assert "".join(a for a, guest in guests if guest.cancelled) == gone
    assert len(connections) == len(addresses) - len(gone)


def test_members_make_no_room_and_are_none_too_many():
    connections = Connections(FEW)
    guests = arrived(connections, "a", "b", "c")
    assert [connections.promote(guest, "x") for guest in guests] == [True, True, False]
    assert connections.promote(guests[0], "x"), "it is one already"
    assert connections.promote(guests[2], "y")
    more = arrived(connections, "a", "a", "b", "b", "c")
    assert not connections.promote(more[-1], "z"), "three members are all"
    assert not any(guest.cancelled for guest in guests)
    assert len(connections) == FEW.members + FEW.guests


def test_who_leaves_gives_its_place_to_others():
    connections = Connections(replace(FEW, guests=1))
    (first,) = arrived(connections, "a")
    connections.leave(first)
    arrived(connections, "a")
    assert not first.cancelled
    for _ in range(3):  # each of the key's two places is free again
        members = [Served() for _ in range(FEW.members_of_key)]
        assert all(connections.promote(one, "x") for one in members)
        for one in members:
            connections.leave(one)
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
    ],
)
def test_a_machine_is_an_address_or_the_network_from_which_it_takes_any(
    address, expected
):
    assert network(address) == expected
