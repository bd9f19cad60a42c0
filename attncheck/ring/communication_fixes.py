"""What to change where an exchange among ranks fails: the settings that route around NCCL's usual failures.

Sources: NVIDIA/nccl#1788, #1672, #2077 (NVLS), #426, #733 (RoCE's GID: "Got completion with error 12"), nccl-tests#117
and accelerate's refusal for RTX 40 (peer access); pytorch#174288, #108378 (batch_isend_irecv before any collective).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attncheck.core.findings import Fix
from attncheck.core.results.collectives import CollectiveResult, Communication

_NVLS = re.compile(r"nvls|multicast", re.IGNORECASE)
_FABRIC = re.compile(r"ncclRemoteError|NET/IB|ibv_|completion with error|remote process", re.IGNORECASE)
_NVLS_GPUS = re.compile(r"H\d00|GH200|B\d00|GB\d00")
LOG = "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,P2P,SHM"
NOT_TRIED = "(not tried here; one at a time)"


def fix_failed_exchanges(communication: Communication, failed: Sequence[CollectiveResult]) -> tuple[Fix, ...]:
    """Return what to set, the likeliest first, and how NCCL tells more; nothing where NCCL is not what communicates."""
    if communication.transport != "nccl":
        return ()
    log = Fix("let NCCL say which path it takes", "advice", LOG)
    return (*_list_settings(communication, failed), log)


def _list_settings(communication: Communication, failed: Sequence[CollectiveResult]) -> Iterator[Fix]:
    reasons = " ".join(exchange.reason for exchange in failed)
    environ = communication.ranks[0].environ if communication.ranks else {}
    spans_nodes = len({facts.node for facts in communication.ranks}) > 1
    has_nvls = any(_NVLS_GPUS.search(facts.device) for facts in communication.ranks)
    if (_NVLS.search(reasons) or (has_nvls and not spans_nodes)) and environ.get("NCCL_NVLS_ENABLE") != "0":
        yield Fix(f"do without NVLink SHARP {NOT_TRIED}", "env", "export NCCL_NVLS_ENABLE=0")
    if _FABRIC.search(reasons) or spans_nodes:
        text = "export NCCL_IB_GID_INDEX=3"
        yield Fix(f"the RoCE v2 address, where show_gids gives it this index on every node {NOT_TRIED}", "env", text)
        yield Fix(f"over TCP, slower {NOT_TRIED}", "env", "export NCCL_IB_DISABLE=1")
    elif environ.get("NCCL_P2P_DISABLE") != "1":
        yield Fix(f"through host memory, slower {NOT_TRIED}", "env", "export NCCL_P2P_DISABLE=1")
    operations = {exchange.operation for exchange in failed}
    if operations <= {"send_recv", "ring"} and any(e.outcome == "ok" for e in communication.exchanges):
        title = f"let every rank of the group enter one collective before the first batch_isend_irecv {NOT_TRIED}"
        yield Fix(title, "edit", "torch.distributed.barrier(group=group)")


def fix_slow_network() -> tuple[Fix, ...]:
    """Return how to see what a node has of the network, and which of it NCCL takes."""
    text = "nvidia-smi topo -m && ibstat && rdma link"
    return (
        Fix("compare the node's network adapters, their state and rate, with those of another node", "advice", text),
    )
