"""Signed calls, made with Flower's own client side."""

import datetime
import math
import time
from base64 import b64encode

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.primitives.asymmetric import generate_key_pairs, sign_message
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fcl_flower.core.errors import WireError
from fcl_flower.deploy.node_auth import NodeKeys, public_key

OURS, OTHER = generate_key_pairs(), generate_key_pairs()


def signed(pair=OURS):
    """The headers of a call, as a SuperNode makes them."""
    request = httpx.Request("POST", "https://x/v1/fleet/pull-messages")
    context = ProtobufRequestContext("", None, request)
    NodeAuthHttpInterceptor(*pair).intercept(context, lambda call: httpx.Response(200))
    return {name.lower(): value for name, value in request.headers.raw}


def with_(headers, **values):
    return {**headers, **{f"flwr-{n}".encode(): v for n, v in values.items()}}


def test_a_client_is_known_by_its_key():
    keys = NodeKeys({"client-0": OURS[1], "client-1": OTHER[1]})

    assert keys.client(signed()) == "client-0"
    assert keys.client(signed(OTHER)) == "client-1"


def test_keys_come_and_go():
    keys = NodeKeys()
    with pytest.raises(WireError, match="unknown key"):
        keys.client(signed())
    keys.replace({"client-0": OURS[1]})
    assert keys.client(signed()) == "client-0"
    keys.replace({})
    with pytest.raises(WireError, match="unknown key"):
        keys.client(signed())


def test_the_last_call_of_each_client_is_known():
    keys = NodeKeys({"client-0": OURS[1], "client-1": OTHER[1]})
    before = time.time()
    keys.client(signed())
    with pytest.raises(WireError):
        keys.client(with_(signed(OTHER), signature=b"forged"))

    assert before <= keys.seen()["client-0"] <= time.time()
    assert math.isnan(keys.seen()["client-1"])
    keys.replace({"client-1": OTHER[1]})
    assert keys.seen().keys() == {"client-1"}


def test_a_call_signed_by_another_is_refused():
    copied = with_(signed(OTHER), **{"public-key": signed()[b"flwr-public-key"]})

    with pytest.raises(WireError, match="in the name of client-0 that it has not"):
        NodeKeys({"client-0": OURS[1]}).client(copied)


@pytest.mark.parametrize("name", ["public-key", "signature", "timestamp"])
@pytest.mark.parametrize(
    "value", [None, b"", b"\xff\x00", b"AAAA", b"A" * 10_000, b"2026-01-01", b"!"]
)
def test_headers_that_are_no_signature_are_refused(name, value):
    headers = with_(signed(), **{name: value})
    if value is None:
        del headers[f"flwr-{name}".encode()]

    with pytest.raises(WireError):
        NodeKeys({"client-0": OURS[1]}).client(headers)


@pytest.mark.parametrize(
    ("seconds", "let_in"), [(-10, False), (-3, True), (300, True), (310, False)]
)
def test_a_call_is_good_for_five_minutes(monkeypatch, seconds, let_in):
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: time)
    keys, headers = NodeKeys({"client-0": OURS[1]}), signed()

    if let_in:
        assert keys.client(headers) == "client-0"
    else:
        with pytest.raises(WireError, match=r"client-0 .* the clocks"):
            keys.client(headers)


def test_a_signed_time_without_a_zone_is_refused():
    time = b"2026-01-01T00:00:00"
    signature = b64encode(sign_message(OURS[0], time))
    headers = with_(signed(), timestamp=time, signature=signature)
    assert TIMESTAMP_HEADER.encode() in headers

    with pytest.raises(WireError, match="without key, time and signature"):
        NodeKeys({"client-0": OURS[1]}).client(headers)


def test_a_public_key_is_read_from_its_file():
    text = OURS[1].public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)

    assert public_key(text + b" client-0\n") == OURS[1]
    assert isinstance(public_key(text), ec.EllipticCurvePublicKey)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"ecdsa-sha2-nistp384 AAAA",
        ed25519.Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
    ],
    ids=["empty", "cut", "another kind"],
)
def test_what_is_no_such_key_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        public_key(text)
