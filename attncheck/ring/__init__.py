"""Context parallelism over N ranks: parity, determinism, bench and communication.

Answers: do ring attention and similar models compute over N processes what one device computes, the same bits each
time, and how fast? The twin of `measure`: the same questions and the same file names, across ranks.

To add a scheme: a backend (`attncheck.attention.backends`) with its `sharding`; nothing here changes.

Read first: `group.py` (the ring that was requested), `parity.py`, then `worker/tasks.py` (what a rank does).
`communication_check.py` lets ranks talk before anything is computed, `roofline.py` says what a scheme could reach,
`hf_adapter.py` proves ring-flash-attn's adapter. `emulated_flash_attn/` is flash-attn's block functions in plain
torch, so that the genuine schedules run without a GPU.

Imports: `measure`, `lint`, `attention`, `doctor`, `workers`, `core`; torch only in `worker/` and
`emulated_flash_attn/`.
"""
