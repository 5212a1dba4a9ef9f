"""Flower's node authentication, before anything of a call is used.

A SuperNode signs the time of each call with its private key, and sends
public key, time and signature as headers (`flwr.supernode.node_auth_http_interceptor`).
The SuperLink verifies them once it has read and parsed the whole call
(`flwr.superlink.routers.fleet.node_auth`). `NodeKeys` verifies them by the head of the
call alone. The SuperLink checks the rest, such as the node id.
"""

import datetime
import math
from base64 import b64decode
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fcl_flower.core.errors import WireError
from fcl_flower.deploy.commands import MAX_AHEAD, MAX_BEHIND

PublicKey = ec.EllipticCurvePublicKey

# What SuperNode and SuperLink agree on; a test holds it against Flower's own.
KEY_HEADER = b"flwr-public-key"
SIGNATURE_HEADER = b"flwr-signature"
TIME_HEADER = b"flwr-timestamp"


def public_key(text: bytes) -> PublicKey:
    """Read the key in a ``.pub`` file."""
    try:
        found = load_ssh_public_key(text)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, PublicKey):
        raise ValueError(f"a key of {type(found).__name__}")
    return found


class NodeKeys:
    """The public keys of the clients that may call, which may change at any time."""

    def __init__(self, keys: Mapping[str, PublicKey] | None = None) -> None:
        """Know these keys, by the names of their clients."""
        self._seen: dict[str, float] = {}
        self.replace(keys or {})

    def replace(self, keys: Mapping[str, PublicKey]) -> None:
        """Know these keys, by the names of their clients, and no others."""
        pem, kind = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        # One assignment: another thread may be verifying.
        self._known = {
            key.public_bytes(pem, kind): (name, key) for name, key in keys.items()
        }

    def seen(self) -> Mapping[str, float]:
        """Return the time of each client's last call by name, NaN before the first one.

        Times are in seconds since 1970.
        """
        names = (name for name, _ in self._known.values())
        return {name: self._seen.get(name, math.nan) for name in names}

    def client(self, headers: Mapping[bytes, bytes]) -> str:
        """Authenticate a call by its headers, in lower case; name the client."""
        try:
            given, signature = (
                b64decode(headers[name], validate=True)
                for name in (KEY_HEADER, SIGNATURE_HEADER)
            )
            time = headers[TIME_HEADER]
            signed = datetime.datetime.fromisoformat(time.decode("ascii"))
            now = datetime.datetime.now(datetime.UTC)
            age = (now - signed).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise WireError("a call without key, time and signature") from error
        # The key comes first: a signature costs time, which only clients may take.
        if given not in self._known:
            raise WireError("a call with an unknown key")
        name, key = self._known[given]
        try:
            key.verify(signature, time, ec.ECDSA(SHA256()))
        except InvalidSignature as error:
            said = f"a call in the name of {name} that it has not signed"
            raise WireError(said) from error
        if not -MAX_AHEAD < age < MAX_BEHIND:
            raise WireError(
                f"a call of {name} that was signed {age:.0f} seconds ago: the clocks "
                "of client and server differ, or the call is another's copy"
            )
        self._seen[name] = now.timestamp()
        return name
