"""Which pairs exchange data, the map of their bandwidth, and who is slow with all others: planted, and noise alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.results.collectives import Communication
from attncheck.ring import communication_check, communication_findings
from attncheck.ring.bandwidth_map import find_outliers, find_slow_links, list_pairs, make_map
from attncheck.ring.pairs import MAX_NODE_PAIRS, choose_pairs, count_ranks_per_node
from attncheck.workers.execution import ExecutionTarget
from tests import snapshots as s
from tests.ring import faulty_links, network_namespaces
from tests.ring.links import Slowdown, make_cluster

SIZES = ((1, 4), (1, 8), (4, 1), (6, 1), (2, 8), (3, 8), (16, 1), (24, 1), (40, 2))


def touches_node(node: int, factor: float = 8.0, ranks_per_node: int = 1) -> Slowdown:
    """Return a slowdown of what goes between `node` and others."""
    return lambda a, b: factor if (a // ranks_per_node == node) != (b // ranks_per_node == node) else 1.0


def touches_rank(rank: int, factor: float = 8.0) -> Slowdown:
    return lambda a, b: factor if rank in (a, b) else 1.0


def messages(result: Communication) -> list[str]:
    return [f.message.partition(":")[0] for f in communication_findings.make_findings(result) if f.code == "ATN524"]


def test_pairs_are_all_of_few_and_the_ring_and_the_first_of_many() -> None:
    assert choose_pairs(2) == ((0, 1),)
    for few in (3, 4, 8):
        assert len(set(choose_pairs(few))) == few * (few - 1) // 2
    sixteen = choose_pairs(16)
    assert {(rank, rank + 1) for rank in range(15)} | {(0, rank) for rank in range(1, 16)} == set(sixteen)
    many = choose_pairs(1024)
    assert len(set(many)) == len(many) == 1024
    assert all(a < b for a, b in (*sixteen, *many, *choose_pairs(40, 1)))


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(2, 8), (3, 8), (4, 4), (8, 8), (16, 1), (16, 8), (12, 1)])
def test_every_two_of_sixteen_nodes_exchange_data(nodes: int, ranks_per_node: int) -> None:
    pairs = choose_pairs(nodes * ranks_per_node, ranks_per_node)
    joined = {(a // ranks_per_node, b // ranks_per_node) for a, b in pairs} - {(n, n) for n in range(nodes)}
    assert len(joined) == nodes * (nodes - 1) // 2
    # Alongside the neighbours on the ring and rank 0's, they have the same place on both nodes: the same rail.
    between = [(a, b) for a, b in pairs if a // ranks_per_node != b // ranks_per_node and a and b != a + 1]
    assert all(a % ranks_per_node == b % ranks_per_node for a, b in between)
    assert max(Counter(rank for pair in pairs[nodes * ranks_per_node :] for rank in pair if rank).values()) <= nodes


@pytest.mark.parametrize("nodes", [17, 20, 33, 64, 500])
def test_of_more_nodes_each_exchanges_data_with_several(nodes: int) -> None:
    pairs = choose_pairs(nodes * 8, 8)
    peers = Counter(node for pair in {(a // 8, b // 8) for a, b in pairs if a // 8 != b // 8} for node in pair)
    assert len(peers) == nodes and min(peers.values()) >= 4
    assert len(pairs) <= 8 * nodes + max(MAX_NODE_PAIRS, 2 * nodes) + 64


def test_the_pairs_of_a_rank_are_spread_over_the_check() -> None:
    for pairs in (choose_pairs(8), choose_pairs(16, 1)[15:]):
        for rank in range(1, 8):
            places = [index for index, pair in enumerate(pairs) if rank in pair]
            assert places[-1] - places[0] > len(pairs) // 2


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 32),
        ({"RANK": "0", "WORLD_SIZE": "32", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}, 8),
        ({"RANK": "0", "WORLD_SIZE": "32", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "7"}, 0),
        ({"RANK": "0", "WORLD_SIZE": "32", "LOCAL_RANK": "0"}, 0),
        ({"RANK": "0", "WORLD_SIZE": "32"}, 1),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, 8),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x3),4(x2)"}, 0),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "0"}, 0),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "32"}, 0),
    ],
)
def test_ranks_of_a_node_are_counted_as_the_launcher_says(environ: dict[str, str], count: int) -> None:
    assert count_ranks_per_node(environ, 32) == count


def test_the_map_is_of_ranks_and_of_nodes_where_there_are_several() -> None:
    one, two, four = make_cluster(1, 8), make_cluster(2, 4), make_cluster(4, 8)
    assert (make_map(one).unit, make_map(one).pairs, len(make_map(one).links)) == ("rank", 28, 28)
    assert (make_map(two).unit, make_map(two).members) == ("rank", tuple(range(8)))
    by_node = make_map(four)
    assert (by_node.unit, by_node.pairs, len(by_node.links)) == ("node", 6, 6)
    for link in by_node.links:
        ends = {link.first, link.second}
        between = [e for e in list_pairs(four) if {e.ranks[0] // 8, e.ranks[1] // 8} == ends]
        assert link.exchange.gb_per_s == min(e.gb_per_s for e in between)
    assert [link.exchange.gb_per_s for link in by_node.links] == sorted(
        link.exchange.gb_per_s for link in by_node.links
    )


def test_an_exchange_that_failed_is_the_worst_of_its_nodes() -> None:
    result = make_cluster(4, 8)
    (index,) = [i for i, e in enumerate(result.exchanges) if e.ranks == (8 + 3, 16 + 3)]
    exchanges = list(result.exchanges)
    exchanges[index] = replace(exchanges[index], outcome="timed_out", gb_per_s=0.0)
    first = make_map(replace(result, exchanges=tuple(exchanges))).links[0]
    assert (first.first, first.second, first.grade) == (1, 2, "lost")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (make_cluster(4, 1, touches_node(2)), "node 2 is slow with every other node over the network"),
        (make_cluster(4, 1, touches_node(0, 2.8)), "node 0 is slow with every other node over the network"),
        (make_cluster(4, 8, touches_node(3, 8.0, 8)), "node 3 is slow with every other node over the network"),
        (make_cluster(12, 1, touches_node(11)), "node 11 is slow with every other node over the network"),
        (make_cluster(64, 8, touches_node(40, 8.0, 8)), "node 40 is slow with all 4 nodes tried over the network"),
        (
            make_cluster(4, 1, touches_node(2), transport="gloo"),
            "node 2 is slow with every other node over the network",
        ),
        (make_cluster(1, 8, touches_rank(5)), "rank 5 is slow with every other rank over NV18"),
        (make_cluster(1, 4, touches_rank(1)), "rank 1 is slow with every other rank over NV18"),
        (make_cluster(4, 8, touches_rank(26)), "rank 26 is slow with all 4 ranks tried over the network"),
    ],
)
def test_who_is_slow_with_all_others_is_named(result: Communication, message: str) -> None:
    assert message in messages(result)
    assert len([text for text in messages(result) if "slow with" in text]) == 1
    (finding,) = [f for f in communication_findings.make_findings(result) if message in f.message]
    assert finding.severity == "warning" and "exchanges without it" in finding.evidence[1]
    assert all(fix.text for fix in finding.fixes)


def test_two_slow_nodes_are_both_named() -> None:
    slowdown: Slowdown = lambda a, b: 8.0 if {a, b} & {2, 9} else 1.0
    assert [outlier.number for outlier in find_outliers(make_cluster(10, 1, slowdown))] == [2, 9]


def test_one_slow_link_is_named_and_blames_no_end() -> None:
    result = make_cluster(8, 1, lambda a, b: 6.0 if (a, b) == (3, 5) else 1.0)
    assert messages(result) == ["the link between ranks 3 and 5 is far slower than others of the same kind"]
    assert find_outliers(result) == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_noise_alone_names_nobody(size: tuple[int, int], noise: float) -> None:
    for seed in range(15):
        assert messages(make_cluster(*size, noise=noise, seed=seed)) == []


@pytest.mark.parametrize(
    "result",
    [
        # Two groups of nodes, slow between them: a node has fast links too, and half of all links are no exception.
        make_cluster(8, 1, lambda a, b: 6.0 if (a < 4) != (b < 4) else 1.0),
        make_cluster(6, 1, lambda a, b: 6.0 if (a < 2) != (b < 2) else 1.0),
        # All but one link of node 2 are slow.
        make_cluster(8, 1, lambda a, b: 6.0 if 2 in (a, b) and 7 not in (a, b) else 1.0),
        # Three nodes: two links against one prove nothing.
        make_cluster(3, 1, touches_node(2)),
        # Of two nodes nobody can tell which is slow.
        make_cluster(2, 8, touches_node(1, 8.0, 8)),
        # By gloo on one host processors are timed.
        make_cluster(1, 8, touches_rank(5), transport="gloo"),
        Communication(),
    ],
)
def test_what_proves_nothing_names_no_node_and_no_rank(result: Communication) -> None:
    assert find_outliers(result) == ()


def test_where_many_links_are_slow_none_is_an_exception() -> None:
    assert find_slow_links(make_cluster(8, 1, lambda a, b: 6.0 if (a < 4) != (b < 4) else 1.0), ()) == ()


HOSTS_AND_A_SLOW_RANK = """
import socket
socket.gethostname = lambda: f"host{RANK}"
send = dist.send

def sends_slowly(tensor, dst, group=None):
    if tensor.nbytes > 1 << 20 and 2 in (RANK, dst):
        time.sleep(0.4)
    send(tensor, dst, group=group)

dist.send = sends_slowly
"""


@pytest.mark.nightly
def test_real_ranks_one_of_which_sends_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str) -> None:
    """Four ranks that give four names of hosts: rank 2, and so node 2, is slow with the three others."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", HOSTS_AND_A_SLOW_RANK))
    target = ExecutionTarget(sys.executable, "cpu")
    result = communication_check.run(4, target, s.laptop(), lambda text: None, 60.0)
    assert {facts.node for facts in result.ranks} == {0, 1, 2, 3}
    assert make_map(result).unit == "node" and len(make_map(result).links) == 6
    rates = {e.ranks: e.gb_per_s for e in list_pairs(result)}
    slow, fast = ([rate for ranks, rate in rates.items() if (2 in ranks) == touches] for touches in (True, False))
    if max(slow) * 2 > statistics.median(fast):
        pytest.skip("this machine is too busy: sending takes longer than the sleep that was planted")
    assert [outlier.number for outlier in find_outliers(result)] == [2]


@pytest.mark.nightly
@pytest.mark.parametrize("slow", ["2", "none"])
def test_real_networks_one_of_which_is_slow(slow: str, marker: str) -> None:
    """Four nodes as network namespaces on a bridge; one of them sends at 100 Mbit/s."""
    pytest.importorskip("torch")
    if not network_namespaces.can_make_namespaces():
        pytest.skip("no network namespaces can be made here")
    command = ["unshare", "-n", sys.executable, network_namespaces.__file__, slow]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    findings = [f for f in json.loads(completed.stdout)["findings"] if f["code"] == "ATN524"]
    expected = ["node 2 is slow with every other node over the network"] if slow == "2" else []
    assert [finding["message"].partition(":")[0] for finding in findings] == expected
