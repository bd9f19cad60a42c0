"""The exchange of snapshots: real sockets, nodes that hang, break, lie, come late or never."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from attncheck.cluster import leader as leading
from attncheck.cluster import wire
from attncheck.cluster.follower import Follower, follow
from attncheck.cluster.leader import Leader
from attncheck.cluster.place import NodePlace
from attncheck.core.io.errors import BadUsage, Unanswered

KEY = b"k" * 32


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def make_place(node: int = 0, nodes: int = 3, ports: tuple[int, ...] = (), key: bytes = KEY) -> NodePlace:
    return NodePlace("torchrun", node, nodes, True, 1, "127.0.0.1", ports or (free_port(),), key)


def ignore_progress(text: str) -> None:
    """Show no progress."""


@contextlib.contextmanager
def start(work: Callable[[], object]) -> Iterator[None]:
    """Run something alongside the block, and wait for it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(20)
    assert not thread.is_alive()


def send(place: NodePlace, node: int, data: bytes, seconds: float = 10.0) -> None:
    follow(replace(place, node=node), time.monotonic() + seconds, lambda: data)


def test_every_node_hands_over_its_document() -> None:
    place = make_place(nodes=9)
    with Leader(place) as leader, contextlib.ExitStack() as nodes:
        for node in range(1, 9):
            nodes.enter_context(start(partial(send, place, node, b"x" * node * 100_000)))
        leader.wait(time.monotonic() + 20, ignore_progress)
        documents, silent = leader.collect()
    assert {node: len(data) for node, data in documents.items()} == {n: n * 100_000 for n in range(1, 9)}
    assert silent == {}


def test_a_node_may_come_before_node_0_listens() -> None:
    place = make_place(nodes=2)
    with start(lambda: send(place, 1, b"early")):
        time.sleep(0.6)
        with Leader(place) as leader:
            leader.wait(time.monotonic() + 10, ignore_progress)
            assert leader.collect() == ({1: b"early"}, {})


def test_another_port_of_the_launch_is_taken_where_the_first_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = int(stranger.getsockname()[1])
        place = make_place(nodes=2, ports=(taken, free_port()))
        with Leader(place) as leader:
            assert leader.port == place.ports[1]
            with start(lambda: send(place, 1, b"x", 15)):  # the first port answers nothing
                leader.wait(time.monotonic() + 15, ignore_progress)
            assert leader.collect()[0] == {1: b"x"}
        with pytest.raises(BadUsage, match="--nodes-port"):
            Leader(replace(place, ports=(taken,)))


def test_silent_nodes_are_told_apart() -> None:
    """Node 1 never comes, node 2 hangs after its hello, node 3's process dies, node 4 answers."""
    place = make_place(nodes=5)
    hanging, dying = (Follower(replace(place, node=node)) for node in (2, 3))
    with Leader(place) as leader:
        hanging.connect(time.monotonic() + 5)
        dying.connect(time.monotonic() + 5)
        dying.close()
        send(place, 4, b"x")
        leader.wait(time.monotonic() + 1, ignore_progress)
        documents, silent = leader.collect()
    hanging.close()
    assert documents == {4: b"x"}
    assert silent[1].startswith(f"it did not reach node 0 on port {place.ports[0]} within ")
    assert silent[2].startswith("it connected, but did not answer within ")
    assert silent[3] == "it connected, but the connection broke before it answered"


def test_nobody_waits_for_a_node_whose_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "BROKEN_SECONDS", 0.2)
    place = make_place(nodes=2)
    follower = Follower(replace(place, node=1))
    with Leader(place) as leader:
        follower.connect(time.monotonic() + 5)
        follower.close()
        leader.wait(time.monotonic() + 3600, ignore_progress)
        assert list(leader.collect()[1]) == [1]


def test_a_connection_that_breaks_is_made_again() -> None:
    place = make_place(nodes=2)
    follower = Follower(replace(place, node=1))
    with Leader(place) as leader:
        follower.connect(time.monotonic() + 5)
        assert follower._connection is not None
        follower._connection.shutdown(socket.SHUT_RDWR)
        follower.hand_over(b"again", time.monotonic() + 10)
        assert leader.collect() == ({1: b"again"}, {})


def test_another_launch_is_kept_out_and_learns_nothing() -> None:
    place = make_place(nodes=2)
    with Leader(place) as leader:
        with pytest.raises(Unanswered, match=r"node 1 did not reach node 0 .* --nodes-port"):
            send(replace(place, key=b"other" * 8), 1, b"x", 1.0)
        assert leader.collect()[0] == {}


def test_a_node_hands_nothing_to_a_node_0_of_another_launch() -> None:
    place = make_place(nodes=2)
    received: list[bytes] = []

    def pretend() -> None:
        with socket.create_server(("127.0.0.1", place.ports[0])) as server:
            connection, _ = server.accept()
            with connection:
                connection.sendall(wire.make_greeting(os.urandom(16)))
                wire.receive(connection, wire.HELLO_BYTES)
                connection.sendall(bytes(32))
                received.append(connection.recv(1))

    with start(pretend), pytest.raises(Unanswered):
        send(place, 1, b"secret", 1.0)
    assert received == [b""]


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(200), wire.MAGIC + bytes(66)])
def test_strangers_are_dropped_and_hold_nobody_up(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "STRANGER_SECONDS", 0.2)
    place = make_place(nodes=2)
    with Leader(place) as leader, socket.create_connection(("127.0.0.1", place.ports[0])) as stranger:
        stranger.sendall(data)
        send(place, 1, b"x")
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(100):
                pass  # the greeting, then the end
        assert leader.collect() == ({1: b"x"}, {})


@pytest.mark.parametrize("fault", ["length", "digest", "node"])
def test_a_node_that_sends_what_no_node_sends_is_not_counted(fault: str) -> None:
    place = make_place(nodes=2)
    with Leader(place) as leader, socket.create_connection(("127.0.0.1", place.ports[0])) as connection:
        greeting, nonce = wire.receive(connection, wire.GREETING_BYTES), bytes(16)
        connection.sendall(wire.make_hello(KEY, greeting, nonce, 7 if fault == "node" else 1))
        connection.settimeout(5)
        if fault != "node":
            wire.check_proof(KEY, greeting, nonce, wire.receive(connection, wire.DIGEST_BYTES))
            document = bytearray(wire.make_document(KEY, greeting, nonce, b"data"))
            document[0 if fault == "length" else -1] ^= 1
            connection.sendall(document)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
        assert leader.collect()[0] == {}


def test_of_two_nodes_of_one_number_the_first_counts() -> None:
    place = make_place(nodes=2)
    with Leader(place) as leader:
        send(place, 1, b"first")
        send(place, 1, b"second")
        assert leader.collect()[0] == {1: b"first"}


def test_nothing_listens_when_it_is_over() -> None:
    place = make_place(nodes=2)
    with Leader(place):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.ports[0]))
