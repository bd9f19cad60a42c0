"""Data go between ranks far slower than over the link that joins them, or than among the other ranks.

What it checks: the bandwidth one way of 64 MiB against the documented rate of the link that `nvidia-smi topo -m` names:
below 25 % of NVLink, 40 % of PCIe x16, or, for the whole group, 10 %. Beside that, links of one kind with each other: a
node or a rank is named of which every exchange, at least three, reaches at most half of the median of those in which it
has no part; and a single link that reaches at most a third of the median of its kind, unless a quarter of them do. Of
up to sixteen nodes every two exchange data, of more each with at least four others. Nothing is said of links that are
not known, or on a CPU; over gloo nodes alone are compared.

Why it matters: ring attention hides the passing of keys and values behind computing only where links are fast. Far
below the rate, data mostly take another path: through the host's memory, or over fewer lanes.

What to do: see whether NCCL_P2P_DISABLE or NCCL_P2P_LEVEL is set; NCCL_DEBUG=INFO names the path ("via P2P" or "via
SHM"); `nvidia-smi nvlink --status` and `nvidia-smi -q` show inactive links and the width of the slot. Of a slow node
compare `ibstat` and `rdma link` with another node's, leave the node out, and have the fabric looked at.

Source: the measurement; attncheck/ring/link_rates.py for the rates; NVIDIA/nccl-tests doc/PERFORMANCE.md for what
is counted; ring-flash-attention README ("NVLink between GPUs are required for high performance").
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN524", "warning", lambda snapshot: (), by_engine=True)
