"""The check of communication: real gloo ranks, right and with injected faults; and its judging, from recorded data."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.devices import Link, Topology
from attncheck.core.findings import Finding
from attncheck.core.results.collectives import CollectiveResult, Communication, RankFacts, WrongPlace, compute_bandwidth
from attncheck.doctor.probes.collect import collect_snapshot
from attncheck.report.formats.text import format_blocks
from attncheck.report.sections.ring import show_communication
from attncheck.ring import communication_check, communication_findings, topology
from attncheck.ring.pairs import choose_pairs
from attncheck.workers.execution import ExecutionTarget
from tests import snapshots as s
from tests.ring import faulty_links

pytest.importorskip("torch")


def check_communication(ranks: int, seconds: float = 30.0) -> Communication:
    return communication_check.run(
        ranks, ExecutionTarget(sys.executable, "cpu"), s.laptop(), lambda text: None, seconds
    )


def get_exchange(result: Communication, operation: str, ranks: tuple[int, ...] | None = None) -> CollectiveResult:
    return next(e for e in result.exchanges if e.operation == operation and ranks in (None, e.ranks))


def finding_codes(result: Communication) -> list[str]:
    return [finding.code for finding in communication_findings.make_findings(result)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_healthy_ranks_are_right(ranks: int, marker: str) -> None:
    result = check_communication(ranks)
    assert [e.outcome for e in result.exchanges] == ["ok"] * (ranks * (ranks - 1) // 2 + 3)
    for exchange in result.exchanges:
        assert exchange.wrong == 0 and exchange.places == ()
        assert exchange.compared > 1 << 20
        assert exchange.bytes == 8 << 20 and exchange.gb_per_s > 0
        assert exchange.dtypes == ("uint8", "bfloat16", "float32")
    assert result.transport == "gloo"
    assert {route.kind for route in result.routes} == {"host"}
    assert communication_findings.make_findings(result) == ()
    assert [facts.rank for facts in result.ranks] == list(range(ranks))
    assert socket.gethostname() not in codec.dumps(result)
    assert codec.loads(Communication, codec.dumps(result)) == result
    for width in (110, 80, 50):
        lines = [
            "".join(text for text, _ in line.head) + line.text
            for line in format_blocks(show_communication(result), False, width)
        ]
        assert sum("right" in line for line in lines) == len(result.exchanges)
        assert all(len(line) <= width for line in lines[2:])


def test_one_rank_has_nobody_to_talk_to(marker: str) -> None:
    assert check_communication(1).exchanges == ()


WRONG = """
gather, batch, send, scatter = (
    dist.all_gather_into_tensor, dist.batch_isend_irecv, dist.send, dist.reduce_scatter_tensor)

def swaps_two_senders(output, sent, group=None):
    gather(output, sent, group=group)
    if RANK == 1:
        parts = output.chunk(4)
        kept = parts[2].clone()
        parts[2].copy_(parts[3])
        parts[3].copy_(kept)

def loses_the_tail(operations):
    for operation in operations:
        cut = operation.tensor.nbytes // 4
        if RANK == 3 and operation.op is dist.isend and cut:
            operation.tensor = operation.tensor.clone()
            operation.tensor.view(torch.uint8)[-cut:] = 0
    return batch(operations)

kept = {}

def sends_what_it_sent_first(tensor, dst, group=None):
    if RANK == 2:
        tensor = kept.setdefault((tensor.numel(), tensor.dtype), tensor.clone())
    send(tensor, dst, group=group)

def forgets_a_rank(output, contribution, group=None):
    scatter(output, contribution.new_zeros(contribution.shape) if RANK == 1 else contribution, group=group)

dist.all_gather_into_tensor, dist.batch_isend_irecv = swaps_two_senders, loses_the_tail
dist.send, dist.reduce_scatter_tensor = sends_what_it_sent_first, forgets_a_rank
"""


def test_wrong_data_are_told_apart_and_their_rank_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", WRONG))
    result = check_communication(4)
    assert {e.outcome for e in result.exchanges} == {"ok"}

    (swapped,) = get_exchange(result, "all_gather").places
    assert (swapped.rank, swapped.sender, swapped.got, swapped.expected) == (1, 2, "rank 3's data", "rank 2's data")
    (cut,) = get_exchange(result, "ring").places
    assert (cut.rank, cut.sender, cut.got) == (0, 3, "zeros")
    assert cut.index == 1021 - 1021 // 4, "the first of two tensors of 1021 bytes loses its tail"
    for pair in ((0, 1), (0, 3), (1, 3)):
        assert get_exchange(result, "send_recv", pair).wrong == 0
    for pair in ((0, 2), (1, 2), (2, 3)):
        (stale,) = get_exchange(result, "send_recv", pair).places
        assert (stale.sender, stale.got) == (2, "rank 2's data of the previous exchange")
        assert stale.rank in pair and stale.rank != 2
    sums = get_exchange(result, "reduce_scatter").places
    assert {place.rank for place in sums} == {0, 1, 2, 3}
    assert {place.got for place in sums} == {"the sum without rank 1"}

    (finding,) = communication_findings.make_findings(result)
    assert finding.code == "ATN520"
    assert "send_recv, ring, all_gather, reduce_scatter" in finding.message
    assert "the sum without rank 1" in str(finding.evidence)


SUBTLE = """
gather, batch, recv, scatter = (
    dist.all_gather_into_tensor, dist.batch_isend_irecv, dist.recv, dist.reduce_scatter_tensor)

def writes_three_quarters(tensor, src, group=None):
    received = torch.empty_like(tensor)
    recv(received, src, group=group)
    size = tensor.numel() * 3 // 4 if RANK == 1 and tensor.numel() > 1 else tensor.numel()
    tensor[:size] = received[:size]

def flips_one_byte_of_a_large_message(operations):
    requests = batch(operations)
    for request in requests:
        request.wait()
    if RANK == 0 and operations[1].tensor.numel() > 1021:
        operations[1].tensor.view(torch.uint8)[12345] ^= 0xFF
    return []

def puts_a_chunk_elsewhere(output, sent, group=None):
    gather(output, sent.roll(1 << 16) if RANK == 1 and sent.numel() > 1 << 16 else sent, group=group)

def adds_a_rank_twice(output, contribution, group=None):
    scatter(output, 2 * contribution if RANK == 0 else contribution, group=group)

dist.all_gather_into_tensor, dist.batch_isend_irecv = puts_a_chunk_elsewhere, flips_one_byte_of_a_large_message
dist.recv, dist.reduce_scatter_tensor = writes_three_quarters, adds_a_rank_twice
"""


def test_a_single_byte_a_lost_chunk_and_a_doubled_rank_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", SUBTLE))
    result = check_communication(2)
    (unwritten,) = get_exchange(result, "send_recv").places
    assert (unwritten.rank, unwritten.index, unwritten.got) == (1, 1021 * 3 // 4, "unwritten memory")
    flipped = get_exchange(result, "ring")
    assert [(place.rank, place.index) for place in flipped.places] == [(0, 12345 // 4)]
    assert "that no rank sent" in flipped.places[0].got
    assert flipped.wrong <= 3, "two turns and the timed one: one element each"
    moved = get_exchange(result, "all_gather").places
    assert {(place.rank, place.sender) for place in moved} == {(0, 1), (1, 1)}
    assert all("bytes from their correct place" in place.got for place in moved)
    doubled = get_exchange(result, "reduce_scatter").places
    assert {place.got for place in doubled} == {"the sum with rank 0 twice"}
    assert finding_codes(result) == ["ATN520"]


FAILING = """
def raises(output, sent, group=None):
    if RANK == 1:
        raise ValueError("no luck")
    gather(output, sent, group=group)

def dies(operations):
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch(operations)

def hangs(output, contribution, group=None):
    if RANK == 3:
        time.sleep(1000)
    scatter(output, contribution, group=group)

gather, batch, scatter = dist.all_gather_into_tensor, dist.batch_isend_irecv, dist.reduce_scatter_tensor
dist.all_gather_into_tensor, dist.batch_isend_irecv, dist.reduce_scatter_tensor = raises, dies, hangs
"""


@pytest.mark.nightly
def test_the_one_that_hangs_is_told_from_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    source = """
    def hangs(operations):
        if RANK == 0:
            time.sleep(1000)
        return batch(operations)

    batch, dist.batch_isend_irecv = dist.batch_isend_irecv, hangs
    """
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", source))
    hung = get_exchange(check_communication(2, seconds=5.0), "ring")
    assert hung.outcome == "timed_out" and "rank 0 hangs in hangs" in hung.reason


@pytest.mark.nightly
def test_a_rank_that_raises_dies_or_hangs_is_named_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", FAILING))
    result = check_communication(4, seconds=6.0)
    assert {e.outcome for e in result.exchanges if e.operation == "send_recv"} == {"ok"}
    dead, raised, hung = (get_exchange(result, name) for name in ("ring", "all_gather", "reduce_scatter"))
    assert dead.outcome == "died" and "rank 2" in dead.reason and "SIGKILL" in dead.reason
    assert raised.outcome == "raised" and raised.reason == "rank 1: ValueError: no luck"
    assert hung.outcome == "timed_out" and "rank 3 hangs in hangs" in hung.reason
    assert hung.reason.startswith(("no answer within 6 s", "no answer within 18 s")), "18 s on a busy machine"
    (finding,) = communication_findings.make_findings(result)
    assert finding.code == "ATN521"
    assert finding.message == "3 of 9 exchanges among 4 ranks did not finish"
    shown = "\n".join(
        "".join(text for text, _ in line.head) + line.text
        for line in format_blocks(show_communication(result), True, 80)
    )
    assert "died" in shown and "raised" in shown and "timed_out" in shown


@pytest.fixture
def gpus() -> ExecutionTarget:
    """Where two GPUs are; without them a test is skipped, or fails if they are required."""
    import torch

    if torch.cuda.device_count() < 2:
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there are not two GPUs")
        pytest.skip("there are not two GPUs here")
    return ExecutionTarget(sys.executable, "cuda")


@pytest.mark.multigpu
def test_gpus_are_right_and_as_fast_as_their_link(gpus: ExecutionTarget, marker: str) -> None:
    snapshot = collect_snapshot(None, ("static", "device"), None, None, 60.0)
    result = communication_check.run(2, gpus, snapshot, lambda text: None)
    assert result.transport == "nccl"
    assert [e.outcome for e in result.exchanges] == ["ok"] * 4
    assert all(e.wrong == 0 and e.bytes == 64 << 20 for e in result.exchanges)
    assert communication_findings.make_findings(result) == ()
    assert result.routes[0].kind, "the link between the two GPUs is found again in the snapshot"


@pytest.mark.multigpu
def test_without_peer_access_nvlink_is_found_slow(
    gpus: ExecutionTarget, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    snapshot = collect_snapshot(None, ("static", "device"), None, None, 60.0)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    result = communication_check.run(2, gpus, snapshot, lambda text: None)
    if not result.routes[0].kind.startswith("NV"):
        pytest.skip("no NVLink here")
    assert finding_codes(result) == ["ATN524"]


@pytest.mark.multigpu
def test_wrong_data_of_gpus_are_seen(
    gpus: ExecutionTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", SUBTLE))
    result = communication_check.run(2, gpus, s.h200x2(), lambda text: None)
    assert all(e.outcome == "ok" and e.wrong for e in result.exchanges)
    assert get_exchange(result, "send_recv").places[0].got == "unwritten memory"
    assert get_exchange(result, "reduce_scatter").places[0].got == "the sum with rank 0 twice"


@pytest.mark.multigpu
def test_lost_gpus_are_named(
    gpus: ExecutionTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    source = FAILING.replace("RANK == 2", "RANK == 0").replace("RANK == 3", "RANK == 1")
    monkeypatch.setenv("PYTHONPATH", faulty_links.write_fault(tmp_path / "site", source))
    result = communication_check.run(2, gpus, s.h200x2(), lambda text: None, 15.0)
    dead, raised, hung = (get_exchange(result, name) for name in ("ring", "all_gather", "reduce_scatter"))
    assert get_exchange(result, "send_recv").outcome == "ok"
    assert dead.outcome == "died" and "rank 0" in dead.reason
    assert raised.outcome == "raised" and raised.reason == "rank 1: ValueError: no luck"
    assert hung.outcome == "timed_out" and "rank 1 hangs in hangs" in hung.reason


# Judging, from what two H200s with NVLink gave (torch 2.11, NCCL 2.28.9), and from two nodes made out of them.

SETTINGS = {"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
PACKAGES = {"flash-attn": "2.8.3", "ring-flash-attn": "0.1.8", "transformers": "5.17.0"}
H200 = RankFacts(
    0, 0, "NVIDIA H200", "2.11.0+cu130", "3.12.3", "2.28.9", "580.159.04", 0, 0, PACKAGES, SETTINGS
)  # fmt: skip
MEASURED = {"send_recv": (0.219, 306.43), "ring": (0.276, 243.61), "all_gather": (0.159, 210.68)}


def make_rank(number: int, **fields: Any) -> RankFacts:
    return replace(H200, **{"rank": number, "card": number, "gpu": number, **fields})


def nvlink_result(**rates: float) -> Communication:
    """Return the result of two H200s with NVLink; `rates` replace the measured GB/s."""
    exchanges = tuple(
        CollectiveResult(name, (0, 1), "ok", "", 64 << 20, ms, rates.get(name, rate), ("uint8",), 1000)  # type: ignore[arg-type]
        for name, (ms, rate) in MEASURED.items()
    )
    ranks = (make_rank(0), make_rank(1))
    return Communication(2, "nccl", ranks, exchanges, topology.find_routes([(0, 1)], ranks, s.h200x2()), 9.7)


def link_result(
    link: Link, rate: float, capability: tuple[int, int] = (9, 0), operation: str = "send_recv"
) -> Communication:
    """Return the result of two GPUs joined by `link`, whose exchange reached `rate` GB/s."""
    snapshot = replace(s.with_gpus(s.h200(), capability, capability), topology=s.Known(Topology((link,), (0, 0))))
    ranks = (make_rank(0), make_rank(1))
    exchanges = (CollectiveResult(operation, (0, 1), "ok", "", 64 << 20, 1.0, rate, ("uint8",), 1000),)  # type: ignore[arg-type]
    return Communication(2, "nccl", ranks, exchanges, topology.find_routes([(0, 1)], ranks, snapshot))


def two_node_result(**second: Any) -> Communication:
    """Return the result of two nodes with a GPU each; `second` changes the facts of the second node's rank."""
    second_rank = make_rank(1, **{"node": 1, "gpu": -1, **second})
    ranks = (H200, second_rank)
    return replace(nvlink_result(), ranks=ranks, routes=topology.find_routes([(0, 1)], ranks, s.h200()))


def exchange_result(**fields: Any) -> Communication:
    result = nvlink_result()
    return replace(result, exchanges=(replace(result.exchanges[0], **fields), *result.exchanges[1:]))


WRONG_PLACE = WrongPlace(1, 0, 7, 1021, "uint8", "zeros", "rank 0's data")
FIRES: dict[str, list[tuple[Communication, str, str]]] = {
    "ATN520": [
        (
            exchange_result(wrong=3, places=(WRONG_PLACE,)),
            "error",
            "rank 1, element 7 of 1021 (uint8): zeros, expected rank 0's",
        )
    ],
    "ATN521": [
        (exchange_result(outcome="raised", reason="rank 1: no luck"), "error", "send_recv 0-1: rank 1: no luck"),
        (exchange_result(outcome="died", reason="rank 1 ended with SIGKILL"), "error", "SIGKILL"),
        (exchange_result(outcome="timed_out", reason="no answer within 30 s"), "error", "within 30 s"),
    ],
    "ATN522": [
        (
            two_node_result(torch="2.10.0+cu130"),
            "error",
            "torch: 2.11.0+cu130 on rank 0 (node 0); 2.10.0+cu130 on rank 1",
        ),
        (two_node_result(nccl="2.27.5"), "error", "NCCL"),
        (two_node_result(packages={**PACKAGES, "flash-attn": "2.8.2"}), "error", "flash-attn"),
        (
            two_node_result(packages={"transformers": "5.17.0", "ring-flash-attn": "0.1.8"}),
            "error",
            "not installed on rank 1",
        ),
        (two_node_result(driver="570.86.15"), "warning", "driver"),
        (
            two_node_result(packages={**PACKAGES, "transformers": "5.16.0"}),
            "warning",
            "transformers: 5.17.0 on rank 0 (node 0)",
        ),
        (two_node_result(packages={**PACKAGES, "ring-flash-attn": "0.1.7"}), "warning", "ring-flash-attn"),
        (two_node_result(python="3.11.9"), "warning", "Python"),
    ],
    "ATN523": [
        (
            two_node_result(environ={**SETTINGS, "NCCL_ALGO": "Ring"}),
            "warning",
            "NCCL_ALGO: not set on rank 0 (node 0); Ring on",
        ),
        (two_node_result(environ={**SETTINGS, "NCCL_NVLS_ENABLE": "1"}), "warning", "NCCL_NVLS_ENABLE: 0 on rank 0"),
    ],
    "ATN524": [
        (
            nvlink_result(send_recv=112.0),
            "warning",
            "send_recv 0-1: 112.0 GB/s, 25 % of the one-way rate of NV18 (450 GB/s)",
        ),
        (nvlink_result(send_recv=36.48, ring=23.9, all_gather=24.91), "warning", "3 exchanges are far slower"),
        (link_result(Link(0, 1, "NV18"), 44.0, operation="all_gather"), "warning", "all_gather all of 2: 44.0 GB/s"),
        (link_result(Link(0, 1, "NV4"), 14.0, (8, 6)), "warning", "56.25 GB/s"),
        (link_result(Link(0, 1, "NV18"), 220.0, (10, 0)), "warning", "900 GB/s"),
        (link_result(Link(0, 1, "PIX"), 12.0, (8, 0)), "warning", "31.5 GB/s"),
        (link_result(Link(0, 1, "PHB"), 6.0, (7, 5)), "warning", "15.75 GB/s"),
    ],
    "ATN525": [
        (replace(nvlink_result(), ranks=(make_rank(0), replace(make_rank(1), card=0))), "error", "2 ranks share 1 GPU")
    ],
}
SILENT: dict[str, list[Communication]] = {
    "ATN520": [nvlink_result()],
    "ATN521": [
        nvlink_result(),
        exchange_result(outcome="refused", reason="gloo cannot"),
        exchange_result(outcome="skipped", reason="given up"),
    ],
    "ATN522": [nvlink_result(), two_node_result()],
    "ATN523": [nvlink_result(), two_node_result()],
    "ATN524": [
        nvlink_result(),
        nvlink_result(send_recv=113.0, ring=46.0),
        link_result(Link(0, 1, "NV4"), 14.1, (8, 6)),
        link_result(Link(0, 1, "PIX"), 12.7, (8, 0)),
        link_result(Link(0, 1, "PHB"), 6.4, (7, 5)),
        link_result(Link(0, 1, "PIX"), 3.2, (8, 0), "all_gather"),
        link_result(Link(0, 1, "SYS"), 1.0),
        link_result(Link(0, 1, "NV18"), 1.0, (13, 0)),
        link_result(Link(0, 1, "PIX", s.Known(False)), 1.0, (8, 9)),
        replace(link_result(Link(0, 1, "NV18"), 1.0), transport="gloo"),
        replace(nvlink_result(send_recv=1.0), routes=()),
        replace(nvlink_result(send_recv=1.0), routes=two_node_result().routes),
    ],
    "ATN525": [
        nvlink_result(),
        two_node_result(),
        replace(nvlink_result(), ranks=(replace(make_rank(0), card=-1), replace(make_rank(1), card=-1))),
    ],
}


def findings_of_code(code: str, result: Communication) -> list[Finding]:
    return [finding for finding in communication_findings.make_findings(result) if finding.code == code]


def parametrize_cases(table: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(code, case, id=f"{code}-{i}") for code, row in table.items() for i, case in enumerate(row)]


@pytest.mark.parametrize(("code", "case"), parametrize_cases(FIRES))
def test_a_fault_is_found(code: str, case: tuple[Communication, str, str]) -> None:
    (finding,) = findings_of_code(code, case[0])
    assert finding.severity == case[1]
    assert case[2] in "\n".join((finding.message, *finding.evidence))
    assert "\n" not in finding.message and not finding.message.endswith(".")
    assert all(fix.title and fix.text for fix in finding.fixes)


@pytest.mark.parametrize(("code", "case"), parametrize_cases(SILENT))
def test_what_is_sound_is_not_blamed(code: str, case: Communication) -> None:
    assert findings_of_code(code, case) == []


def test_every_rule_has_both_sides() -> None:
    assert set(FIRES) == set(SILENT) == {f"ATN52{number}" for number in range(6)}


def test_a_healthy_machine_has_no_finding() -> None:
    assert communication_findings.make_findings(nvlink_result()) == ()
    assert communication_findings.make_findings(Communication()) == ()


def make_facts(number: int, host: str, **fields: Any) -> dict[str, Any]:
    """Return the facts that a rank reports of itself."""
    facts = {"rank": number, "host": host, "device": "NVIDIA H200", "torch": "2.11.0", "python": "3.12.3"}
    facts |= {"nccl": "2.28.9", "driver": "580", "packages": {}, "environ": {}, "bus": f"00000000:{number:02x}:00"}
    return {**facts, "gpu": number, **fields}


def test_hosts_become_numbers_and_gpus_are_found_again() -> None:
    documents = [make_facts(1, "b", gpu=0), make_facts(0, "a"), make_facts(2, "a", gpu=1), make_facts(3, "b", gpu=1)]
    facts = topology.make_rank_facts(documents, s.h200x2())
    assert [(f.rank, f.node, f.gpu) for f in facts] == [(0, 0, 0), (1, 1, -1), (2, 0, 1), (3, 1, -1)]
    assert len({f.card for f in facts}) == 4
    kinds = {(r.first, r.second): r.kind for r in topology.find_routes(choose_pairs(4), facts, s.h200x2())}
    assert kinds == {
        (0, 1): "network",
        (0, 2): "NV18",
        (0, 3): "network",
        (1, 2): "network",
        (1, 3): "",
        (2, 3): "network",
    }


def test_the_same_address_on_two_hosts_is_two_gpus() -> None:
    same = "00000000:18:00"
    facts = topology.make_rank_facts([make_facts(0, "a", bus=same), make_facts(1, "b", bus=same)], s.h200x2())
    assert facts[0].card != facts[1].card
    facts = topology.make_rank_facts([make_facts(0, "a", bus=same), make_facts(1, "a", bus=same)], s.h200x2())
    assert facts[0].card == facts[1].card


def test_visible_devices_are_counted_not_all() -> None:
    facts = topology.make_rank_facts([make_facts(0, "a", gpu=0)], s.hide_gpus(s.h200x2(), 0))
    assert facts[0].gpu == 1


def test_what_names_a_host_is_not_told() -> None:
    (facts,) = topology.make_rank_facts(
        [make_facts(0, "a", environ={"NCCL_COMM_ID": "10.0.0.1:5", "NCCL_ALGO": "Ring"})], s.h200()
    )
    assert facts.environ == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    ("kind", "capability", "rate"),
    [
        ("NV18", (9, 0), 450.0), ("NV12", (8, 0), 300.0), ("NV6", (7, 0), 150.0), ("NV4", (8, 6), 56.25),
        ("NV18", (10, 0), 900.0), ("NV4", (6, 0), 80.0), ("PIX", (9, 0), 31.5), ("PXB", (7, 0), 15.75),
        ("NODE", (9, 0), 0.0), ("SYS", (9, 0), 0.0), ("NV18", (99, 0), 0.0), ("C2C", (9, 0), 0.0), ("", (9, 0), 0.0),
    ],
)  # fmt: skip
def test_rates_are_the_documented_ones(kind: str, capability: tuple[int, int], rate: float) -> None:
    assert topology.one_way_gb_per_s(kind, capability) == rate


def test_bandwidth_is_that_of_the_link() -> None:
    assert compute_bandwidth("send_recv", 2, 10**9, 1000.0) == compute_bandwidth("ring", 8, 10**9, 1000.0) == 1.0
    assert (
        compute_bandwidth("all_gather", 4, 10**9, 1000.0)
        == compute_bandwidth("reduce_scatter", 4, 10**9, 1000.0)
        == 0.75
    )
    assert compute_bandwidth("ring", 2, 10**9, 0.0) == 0.0


def test_every_parcel_is_its_own() -> None:
    import torch

    from attncheck.ring.worker.data_check import compare_pattern, fill_pattern

    for dtype in (torch.uint8, torch.bfloat16, torch.float32):
        for length in (1, 3, 1021):
            raw = {
                (sender, turn): bytes(fill_pattern(sender, turn, length, dtype, "cpu").view(torch.uint8).tolist())
                for sender in range(32)
                for turn in (1, 2)
            }
            assert len(set(raw.values())) == 64
            for content in raw.values():
                assert any(content) and any(byte != 0xFF for byte in content)
            for (sender, turn), content in raw.items():
                received = torch.tensor(list(content), dtype=torch.uint8).view(dtype)
                assert compare_pattern(received, sender, turn, 0, 32).wrong == 0
                wrong_sender = compare_pattern(received, (sender + 1) % 32, turn, 0, 32)
                assert wrong_sender.wrong > 0 and wrong_sender.first_wrong is not None
                assert wrong_sender.first_wrong.got == f"rank {sender}'s data"
                stale = compare_pattern(received, sender, 3 - turn, 0, 32).first_wrong
                assert stale is not None and stale.got.startswith(f"rank {sender}'s data of the previous exchange")


def test_chunks_of_round_sizes_do_not_bear_each_others_marks() -> None:
    import torch

    from attncheck.ring.worker.data_check import compare_pattern, fill_pattern

    pattern = fill_pattern(3, 1, 1 << 22, torch.float32, "cpu")
    for power in range(22):
        comparison = compare_pattern(pattern.view(torch.uint8).roll(4 << power).view(torch.float32), 3, 1, 0, 4)
        assert comparison.wrong == 1 << 22, f"moved by 2**{power} elements"


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 61])
def test_sums_are_exact_and_mistakes_explained(ranks: int) -> None:
    import torch

    from attncheck.ring.worker.data_check import compare_sums, sum_contribution

    for dtype in (torch.uint8, torch.bfloat16, torch.float32):
        contributions = [sum_contribution(rank, ranks, 1, 509, dtype, "cpu") for rank in range(ranks)]
        sums = contributions[0].clone()
        for contribution in contributions[1:]:
            sums += contribution  # in the dtype itself: nothing may be rounded
        for rank, part in enumerate(sums.chunk(ranks)):
            assert compare_sums(part, rank, ranks, 1).wrong == 0
            stale = compare_sums(part, rank, ranks, 2)
            assert stale.first_wrong is not None and stale.first_wrong.got == "the sum of the previous exchange"
        without = compare_sums((sums - contributions[1]).chunk(ranks)[0], 0, ranks, 1)
        assert without.wrong and without.first_wrong is not None and without.first_wrong.got == "the sum without rank 1"
        largest = torch.stack(contributions).amax(0).chunk(ranks)[0]
        assert compare_sums(largest, 0, ranks, 1).wrong == 509
        elsewhere = compare_sums(sums.chunk(ranks)[1], 0, ranks, 1)
        assert elsewhere.wrong > 400
