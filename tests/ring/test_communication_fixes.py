"""Which settings are offered for an exchange that failed: by its words, its GPUs and what is set already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.results.collectives import Communication
from attncheck.ring.communication_findings import fix_failed_exchanges
from tests.ring.test_communication import exchange_result, two_node_result

NVLS, GID, PEERS, BARRIER = "NCCL_NVLS_ENABLE=0", "NCCL_IB_GID_INDEX=3", "NCCL_P2P_DISABLE=1", "barrier(group=group)"


def list_settings(communication: Communication, device: str = "NVIDIA A100", **environ: str) -> str:
    ranks = tuple(replace(facts, device=device, environ=environ) for facts in communication.ranks)
    failed = [exchange for exchange in communication.exchanges if exchange.outcome != "ok"]
    return " ".join(fix.text for fix in fix_failed_exchanges(replace(communication, ranks=ranks), failed))


@pytest.mark.parametrize(
    ("reason", "device", "offered", "not_offered"),
    [
        ("transport/nvls.cc: Cuda failure", "NVIDIA A100", NVLS, GID),
        ("no answer within 30 s", "NVIDIA H100 80GB HBM3", NVLS, GID),
        ("no answer within 30 s", "NVIDIA A100", PEERS, NVLS),
        ("NET/IB : Got completion with error 12", "NVIDIA A100", GID, PEERS),
        ("no answer within 30 s", "NVIDIA A100", BARRIER, GID),
    ],
)
def test_by_what_failed(reason: str, device: str, offered: str, not_offered: str) -> None:
    settings = list_settings(exchange_result(outcome="timed_out", reason=reason), device)
    assert offered in settings and not_offered not in settings


def test_what_is_set_is_not_offered_again() -> None:
    failed = exchange_result(outcome="timed_out", reason="no answer within 30 s")
    assert NVLS not in list_settings(failed, "NVIDIA H200", NCCL_NVLS_ENABLE="0")
    assert PEERS not in list_settings(failed, NCCL_P2P_DISABLE="1")


def test_between_nodes_and_without_nccl() -> None:
    nodes = two_node_result()
    failed = replace(nodes, exchanges=(replace(nodes.exchanges[0], outcome="raised", reason="x"),))
    assert GID in list_settings(failed) and BARRIER not in list_settings(failed)
    assert list_settings(replace(failed, transport="gloo")) == ""
