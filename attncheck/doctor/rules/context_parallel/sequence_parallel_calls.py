"""A program of one's own calls a sequence-parallel library in a way that it does not serve.

What it checks: the Python programs that `attncheck lint` is given, or that a launch starts beside it, where they call
ring-flash-attn, yunchang (USP, xDiT) or DeepSpeed's Ulysses: rows padded to a length that divides, the parameters of a
packed row set before each forward, process groups set, position_ids made, an attention type that has a backward.

Why it matters: the libraries leave these to the caller. Left out, they end in an assertion without a message or a
KeyError in the first step, or compute over the wrong ranks.

What to do: as the fix says; the call may also stand in a file that was not read, hence a warning.

Source: ring_flash_attn 0.1.8 adapters/hf_adapter.py, llama3_flash_attn_varlen.py, ring_flash_attn.py; yunchang 0.6.4
kernels/attention.py, hybrid/attn_layer.py, globals.py, of which attention types were run on two gloo ranks; deepspeed
runtime/sequence_parallel/ulysses_sp.py. The code that pads is run by the test.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN576", "warning", lambda snapshot: (), by_engine=True)
