"""Ranks run with different settings of communication or of determinism.

What it checks: NCCL_*, TORCH_NCCL_*, GLOO_*, CUBLAS_WORKSPACE_CONFIG and FLASH_ATTENTION_DETERMINISTIC on every rank.
Names of interfaces and adapters may differ from host to host and are left out.

Why it matters: where ranks choose algorithm, protocol or buffers differently, they wait for each other or fail; a
determinism switch set on one node alone makes nothing deterministic.

What to do: export them in the job's script, or with the launcher (`srun --export`, `mpirun -x`, Ray's runtime_env), not
in one node's profile.

Source: what the ranks tell; NVIDIA/nccl#1328 ("version or configuration mismatch between two ranks … environment
variables set on one rank but not the other").
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN523", "warning", lambda snapshot: (), by_engine=True)
