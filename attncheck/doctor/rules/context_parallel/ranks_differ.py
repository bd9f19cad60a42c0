"""Ranks run different versions of what computes or communicates.

What it checks: versions of torch, NCCL and flash-attn as every rank tells them; also of Python, the driver,
ring-flash-attn and transformers, whose differences are a warning.

Why it matters: two versions of NCCL may not understand each other, and hang; two of flash-attn round differently or
choose other kernels, so that ranks no longer hold the same model after a step.

What to do: start all nodes from one image or one lock file.

Source: what the ranks tell; NVIDIA/nccl#1267 (2.19 beside 2.20 did not connect), NVIDIA/nccl#1328.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN522", "error", lambda snapshot: (), by_engine=True)
