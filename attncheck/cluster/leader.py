"""Node 0's side: receives the other nodes' documents in a thread while this node is examined."""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from attncheck.cluster import wire
from attncheck.cluster.place import NodePlace
from attncheck.core.io import interrupts
from attncheck.core.io.errors import BadUsage, Unanswered

TICK_SECONDS = 0.05
STRANGER_SECONDS = 10.0  # time for a connection to show that it belongs to this launch
BROKEN_SECONDS = 10.0  # time for a node whose connection broke to return
SPARE_CONNECTIONS = 64  # connections in addition to one for each node
BLOCK = 1 << 18


@dataclass
class NodeState:
    """What node 0 knows about another node."""

    greeted: float = 0.0  # time.monotonic() of its first greeting; 0: none was received
    broke: float = 0.0  # when its connection broke; 0: it did not, or never existed
    document: bytes | None = None


@dataclass
class _Connection:
    """One connection, and the reader that requests its data."""

    socket: socket.socket
    reader: Generator[Any, bytes, wire.Document]
    opened: float
    needs: int = 0
    received: bytearray = field(default_factory=bytearray)
    node: int = -1  # -1: it has not shown that it belongs to this launch


class Leader:
    """Gathers the documents of all nodes but our own. A context manager: it listens only inside its block."""

    def __init__(self, place: NodePlace) -> None:
        """Listen. Raises `Unanswered` if no port of the launch is free."""
        self.states = {node: NodeState() for node in range(place.nodes) if node != place.node}
        self._place = place
        self._began = time.monotonic()
        self._listener = _listen(place)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[socket.socket, _Connection] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        _raise_file_limit(place.nodes + SPARE_CONNECTIONS)

    def __enter__(self) -> "Leader":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(5)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._listener.getsockname()[1])

    def wait(self, deadline: float, report_progress: Callable[[str], None]) -> None:
        """Wait until every node has answered or is lost, or until `deadline`, a time.monotonic() value."""
        while time.monotonic() < deadline:
            missing = [state for state in self.states.values() if state.document is None]
            if all(state.broke and time.monotonic() - state.broke > BROKEN_SECONDS for state in missing):
                return
            report_progress(f"{len(self.states) - len(missing) + 1} of {self._place.nodes} nodes have answered")
            time.sleep(TICK_SECONDS)
            interrupts.raise_if_interrupted()

    def collect(self) -> tuple[dict[int, bytes], dict[int, str]]:
        """Return the documents by node, and why each other node has none; later documents are not counted."""
        with self._lock:
            documents, silent = {}, {}
            for node, state in self.states.items():
                if state.document is not None:
                    documents[node] = state.document
                else:
                    silent[node] = self._describe_silence(state)
            return documents, silent

    def _describe_silence(self, state: NodeState) -> str:
        seconds = time.monotonic() - self._began
        if state.broke:
            return "it connected, but the connection broke before it answered"
        if state.greeted:
            return f"it connected, but did not answer within {seconds:.0f} s"
        return f"it did not reach node 0 on port {self.port} within {seconds:.0f} s"

    def _serve(self) -> None:
        try:
            while not self._ends.is_set():
                for key, _ in self._selector.select(TICK_SECONDS):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(self._connections[key.fileobj])  # type: ignore[index]
                self._drop_strangers()
        finally:
            for connection in list(self._connections.values()):
                self._close(connection)
            self._selector.close()
            self._listener.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:  # the peer went away, or no more files can be opened: its node tries again
            time.sleep(TICK_SECONDS)
            return
        if len(self._connections) >= self._place.nodes + SPARE_CONNECTIONS:
            accepted.close()
            return
        accepted.setblocking(False)
        nonce = os.urandom(wire.NONCE_BYTES)
        connection = _Connection(accepted, wire.read_node(self._place.key, nonce), time.monotonic())
        self._connections[accepted] = connection
        self._selector.register(accepted, selectors.EVENT_READ)
        try:
            accepted.sendall(wire.make_greeting(nonce))
            connection.needs = next(connection.reader)
        except OSError:
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(BLOCK)
            if not data:
                raise ConnectionError("the connection ended")
            connection.received += data
            while len(connection.received) >= connection.needs:
                part = bytes(connection.received[: connection.needs])
                del connection.received[: connection.needs]
                self._advance(connection, part)
        except BlockingIOError:
            return
        except StopIteration as end:
            self._take(connection, end.value)
        except (OSError, wire.Refused):
            self._close(connection)

    def _advance(self, connection: _Connection, part: bytes) -> None:
        """Give the reader the bytes that it waits for, and serve its requests until it waits again."""
        wanted = connection.reader.send(part)
        while not isinstance(wanted, int):
            if isinstance(wanted, wire.Hello):
                self._greet(connection, wanted.node)
            else:
                connection.socket.sendall(wanted)  # a few bytes, for which a new connection has room
            wanted = connection.reader.send(b"")
        connection.needs = wanted

    def _greet(self, connection: _Connection, node: int) -> None:
        if node not in self.states:
            raise wire.Refused(f"node {node} does not exist")
        connection.node = node
        with self._lock:
            state = self.states[node]
            state.greeted, state.broke = state.greeted or time.monotonic(), 0.0

    def _take(self, connection: _Connection, document: wire.Document) -> None:
        with self._lock:
            state = self.states[document.node]
            if state.document is None:  # if two nodes claim one number, the first counts
                state.document = document.data
        with contextlib.suppress(OSError):
            connection.socket.sendall(wire.TAKEN)
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        self._connections.pop(connection.socket, None)
        connection.socket.close()
        if connection.node in self.states:
            with self._lock:
                if not any(other.node == connection.node for other in self._connections.values()):
                    self.states[connection.node].broke = time.monotonic()

    def _drop_strangers(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.node < 0 and now - connection.opened > STRANGER_SECONDS:
                self._close(connection)


def _listen(place: NodePlace) -> socket.socket:
    """Return a socket that listens on the first free port of the launch.

    It listens only on node 0's address if the launcher gives it as a number; a name may mean another interface here.
    """
    reason = ""
    for port in place.ports:
        for host in _list_hosts(place.address):
            try:
                return socket.create_server(
                    (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
                )
            except OSError as error:
                reason = error.strerror or str(error)
    ports = ", ".join(map(str, place.ports))
    if len(place.ports) == 1:
        raise BadUsage(f"node 0 cannot listen on port {ports}: {reason}; name a free one: --nodes-port")
    raise Unanswered(f"node 0 cannot listen on any of the ports {ports}: {reason}; name a free one: --nodes-port")


def _list_hosts(address: str) -> tuple[str, ...]:
    """Return the addresses to listen on, in order of preference; "" is all of IPv4, "::" of IPv6."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, address)
            return (address, "" if family == socket.AF_INET else "::")
    return ("127.0.0.1",) if address == "localhost" else ("", "::")


def _raise_file_limit(files: int) -> None:
    """Allow this process to open as many files as there are nodes, up to the hard limit."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = files + 256
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
