"""The side of every node but node 0: announces itself to node 0, and later sends its snapshot."""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable

from attncheck.cluster import wire
from attncheck.cluster.place import NodePlace
from attncheck.core.io import interrupts
from attncheck.core.io.errors import Unanswered

RETRY_SECONDS = 0.25
CONNECT_SECONDS = 3.0  # timeout of one attempt
ANSWER_SECONDS = 30.0  # timeout for node 0 to accept the data


class Follower:
    """The connection to node 0."""

    def __init__(self, place: NodePlace) -> None:
        self._place = place
        self._connection: socket.socket | None = None
        self._greeting = self._nonce = b""

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self, deadline: float) -> None:
        """Greet node 0, trying as often as needed. Raises `Unanswered` at `deadline`, a time.monotonic() value."""
        reason = "no answer"
        for port in itertools.cycle(self._place.ports):
            left = deadline - time.monotonic()
            if left <= 0:
                ports = ", ".join(map(str, self._place.ports))
                raise Unanswered(
                    f"node {self._place.node} did not reach node 0 on port {ports}: {reason}; is this port "
                    "open between the nodes? --nodes-port names another, --nodes-timeout gives more time"
                )
            try:
                self._say_hello(port, min(CONNECT_SECONDS, left))
                return
            except (OSError, wire.Refused) as error:
                self.close()
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            _sleep(RETRY_SECONDS if port == self._place.ports[-1] else 0.0)

    def hand_over(self, data: bytes, deadline: float) -> None:
        """Send the document; if the connection broke meanwhile, open a new one. Raises `Unanswered`."""
        while True:
            try:
                if self._connection is None:
                    self.connect(deadline)
                self._send(data, max(1.0, min(ANSWER_SECONDS, deadline - time.monotonic())))
                return
            except OSError:
                self.close()
                if time.monotonic() >= deadline:
                    raise Unanswered(f"node 0 did not accept the data of node {self._place.node} sent") from None
                _sleep(RETRY_SECONDS)

    def _say_hello(self, port: int, seconds: float) -> None:
        connection = self._connection = socket.create_connection((self._place.address, port), seconds)
        with contextlib.suppress(OSError):  # a connection to itself, which the system may make of an outgoing port
            if connection.getsockname() == connection.getpeername():
                raise wire.Refused("nobody listens there")
        self._greeting, self._nonce = wire.receive(connection, wire.GREETING_BYTES), os.urandom(wire.NONCE_BYTES)
        connection.sendall(wire.make_hello(self._place.key, self._greeting, self._nonce, self._place.node))
        proof = wire.receive(connection, wire.DIGEST_BYTES)
        wire.check_proof(self._place.key, self._greeting, self._nonce, proof)

    def _send(self, data: bytes, seconds: float) -> None:
        assert self._connection is not None
        self._connection.settimeout(seconds)
        self._connection.sendall(wire.make_document(self._place.key, self._greeting, self._nonce, data))
        wire.receive(self._connection, len(wire.TAKEN))
        self.close()


def follow(place: NodePlace, deadline: float, make_document: Callable[[], bytes]) -> None:
    """Greet node 0, make our document and send it. Raises `Unanswered` if node 0 cannot be reached."""
    follower = Follower(place)
    try:
        follower.connect(deadline)
        follower.hand_over(make_document(), deadline)
    finally:
        follower.close()


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
    interrupts.raise_if_interrupted()
