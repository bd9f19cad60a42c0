"""Data go between GPUs far slower than over the link that joins them.

What it checks: the bandwidth one way of 64 MB against the documented rate of the link that `nvidia-smi topo -m` names:
below 25 % of NVLink, 40 % of PCIe x16, or, for the whole group, 10 %. Nothing is said where the link is not known, goes
between processors or over a network, or on a CPU.

Why it matters: ring attention hides the passing of keys and values behind computing only where links are fast. Far
below the rate, data mostly take another path: through the host's memory, or over fewer lanes.

What to do: see whether NCCL_P2P_DISABLE or NCCL_P2P_LEVEL is set; NCCL_DEBUG=INFO names the path ("via P2P" or "via
SHM"); `nvidia-smi nvlink --status` and `nvidia-smi -q` show inactive links and the width of the slot.

Source: the measurement; attncheck/ring/link_rates.py for the rates; NVIDIA/nccl-tests doc/PERFORMANCE.md for what
is counted; ring-flash-attention README ("NVLink between GPUs are required for high performance").
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN524", "warning", lambda snapshot: (), by_engine=True)
