"""A node has fewer GPUs than the job takes on each.

What it checks: under `attncheck doctor --nodes` and `--ray`, the GPUs that a job on each node would see, against
`--gpus-per-node`, else against what the launch files of the policy take, else, on nodes with GPUs, against the ranks
that torchrun started on each.

Why it matters: torchrun fails when it starts the rank without a GPU, after all nodes have met; Ray does not fail: a
placement group that asks for eight GPUs of one node waits for a node that has them, for ever and without an error.

What to do: look for the GPUs that are missing there (a hidden one, a driver that lost one), leave the node out, or ask
for fewer.

Source: the nodes' snapshots; verl 0.9.1 single_controller/ray/base.py (a pool's `n_gpus_per_node` must lie on one node,
STRICT_PACK); torch 2.13.0 distributed/run.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN581", "error", lambda snapshot: (), by_engine=True)
