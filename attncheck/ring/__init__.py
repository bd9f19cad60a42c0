"""Context parallelism across N ranks: parity, determinism, bench and communication.

It answers whether ring attention and similar schemes compute the same over N processes as one device does, whether
every run gives the same bits, and how fast they are. It is the twin of `measure`: the same questions and file names,
across ranks.

To add a scheme, add a backend (`attncheck.attention.backends`) with its `sharding`; nothing here changes.

Read first: `group.py` (the requested ring), `parity.py`, then `worker/tasks.py` (what a rank does).
`communication_check.py` tests communication before anything is computed. `roofline.py` computes what a scheme can
reach. `hf_adapter.py` checks ring-flash-attn's adapter. `emulated_flash_attn/` has flash-attn's block functions in
plain torch, so that ring-flash-attn's own schedules run without a GPU.

Imports: `measure`, `lint`, `attention`, `doctor`, `workers`, `core`; torch only in `worker/` and
`emulated_flash_attn/`.
"""
