"""The protocol by which a node sends its snapshot to node 0, after both proved that they know the launch's key.

node 0 to node   MAGIC, its nonce
node to node 0   MAGIC, its own nonce, the node's number (4 bytes), a digest of both nonces and the number
node 0 to node   a digest of both nonces
node to node 0   the document's length (8 bytes), the document, a digest of the nonces and the document
node 0 to node   TAKEN

Digests are HMAC-SHA256 with the launch's key. The protocol keeps out stray connections and other launches, and protects
documents from truncation. It does not encrypt, and is only as strong as the key (`place.py`).
"""

import hashlib
import hmac
import socket
from collections.abc import Generator
from dataclasses import dataclass

MAGIC = b"attncheck nodes 1\n"
TAKEN = b"taken\n"
NONCE_BYTES, NUMBER_BYTES, LENGTH_BYTES, DIGEST_BYTES = 16, 4, 8, 32
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
HELLO_BYTES = GREETING_BYTES + NUMBER_BYTES + DIGEST_BYTES
MAX_DOCUMENT = 64 << 20  # bytes, packed


class Refused(Exception):
    """The other side does not belong to this launch, or does not follow the protocol."""


@dataclass(frozen=True)
class Hello:
    """A node that proved that it belongs to this launch."""

    node: int


@dataclass(frozen=True)
class Document:
    """What a node sent."""

    node: int
    data: bytes


def make_greeting(nonce: bytes) -> bytes:
    """Return the first message of node 0."""
    return MAGIC + nonce


def make_hello(key: bytes, greeting: bytes, nonce: bytes, node: int) -> bytes:
    """Return a node's answer to a greeting. Raises `Refused` if the greeting is not ours."""
    if len(greeting) != GREETING_BYTES or not greeting.startswith(MAGIC):
        raise Refused("another program listens on this port")
    number = node.to_bytes(NUMBER_BYTES, "big")
    return MAGIC + nonce + number + _digest(key, b"node", greeting[len(MAGIC) :], nonce, number)


def make_proof(key: bytes, leader_nonce: bytes, nonce: bytes) -> bytes:
    """Return the message that proves to a node that node 0 belongs to its launch."""
    return _digest(key, b"leader", leader_nonce, nonce)


def check_proof(key: bytes, greeting: bytes, nonce: bytes, proof: bytes) -> None:
    """Raise `Refused` if node 0 belongs to another launch."""
    if not hmac.compare_digest(proof, make_proof(key, greeting[len(MAGIC) :], nonce)):
        raise Refused("node 0 belongs to another launch")


def make_document(key: bytes, greeting: bytes, nonce: bytes, data: bytes) -> bytes:
    """Return a document in the form in which it is sent."""
    digest = _digest(key, b"document", greeting[len(MAGIC) :], nonce, data)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data + digest


def read_node(key: bytes, leader_nonce: bytes) -> Generator[int | bytes | Hello, bytes, Document]:
    """Read what one node sends, as node 0. Raises `Refused`.

    Yields the number of bytes that it waits for, and receives them; or yields bytes to send or a `Hello`, and ignores
    what it receives. Returns the document.
    """
    hello = yield HELLO_BYTES
    nonce = hello[len(MAGIC) : GREETING_BYTES]
    number = hello[GREETING_BYTES : GREETING_BYTES + NUMBER_BYTES]
    digest = _digest(key, b"node", leader_nonce, nonce, number)
    if not hello.startswith(MAGIC) or not hmac.compare_digest(hello[-DIGEST_BYTES:], digest):
        raise Refused("it does not belong to this launch")
    node = int.from_bytes(number, "big")
    yield Hello(node)
    yield make_proof(key, leader_nonce, nonce)
    size = int.from_bytes((yield LENGTH_BYTES), "big")
    if size > MAX_DOCUMENT:
        raise Refused("its document is too long")
    data = (yield size) if size else b""
    if not hmac.compare_digest((yield DIGEST_BYTES), _digest(key, b"document", leader_nonce, nonce, data)):
        raise Refused("its document is damaged")
    return Document(node, data)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes. Raises `OSError`, also if the other side closes the connection before."""
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 16))
        if not part:
            raise ConnectionError("the connection ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _digest(key: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(LENGTH_BYTES, "big") + part)
    return digest.digest()
