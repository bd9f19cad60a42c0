"""Nodes of one job differ in what attention stands on.

What it checks: under `attncheck doctor --nodes` and `--ray`, the facts of every node's own snapshot: versions, wheels
and contents of the packages that attention stands on, torch's CUDA, NCCL and architectures, Python, the driver, the
GPUs, and settings of communication and determinism. An error where torch, its CUDA, NCCL or flash-attn differ, else a
warning. Nodes that differ in the same way are one finding.

Why it matters: two versions of NCCL may not understand each other, and hang; two of flash-attn or torch round
differently or choose other kernels, so that ranks no longer hold the same model after a step; a package that one node
lacks ends the job there, after all others have started.

What to do: start all nodes from one image or one lock file; the finding names the nodes, and installs there what most
nodes have.

Source: the nodes' snapshots; NVIDIA/nccl#1267 (2.19 beside 2.20 did not connect), NVIDIA/nccl#1328 ("version or
configuration mismatch between two ranks").
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN580", "error", lambda snapshot: (), by_engine=True)
