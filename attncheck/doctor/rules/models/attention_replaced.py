"""Another attention runs than the one that was asked for.

What it checks: `attncheck smoke` runs a small model of the architecture under the plan and listens in every attention
layer: what the plan requested, what the layer's configuration says when it runs, and which operator was dispatched.

Why it matters: silent. Memory, speed and determinism are those of what runs: a model built from a configuration object
that another model shares takes that model's implementation, a framework may rewrite the setting, and a missing package
may be replaced by a kernel from the Hub.

What to do: give every model a configuration of its own (`copy.deepcopy(config)`), name the implementation where the
model is built, and use one that is proven to run here; smoke tries the others.

Source: the measurement itself; transformers 5.17.0, modeling_utils.py (`AttentionInterface.get_interface` reads
`config._attn_implementation` at every call).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN340", "error", lambda snapshot: (), by_engine=True)
