"""torch.compile is switched off, and flex_attention needs it.

What it checks: TORCH_COMPILE_DISABLE=1 or TORCHDYNAMO_DISABLE=1 in the environment, if transformers (which offers
flex_attention) is installed and torch has a usable GPU.

Why it matters: without compilation flex_attention computes and stores every score. It is an order of magnitude
slower, and runs out of memory at long sequences. Other attention implementations are not affected.

What to do: unset it, or do not choose flex_attention.

Source: torch 2.13.0, `_dynamo/config.py` and `_dynamo/eval_frame.py` (read the variables),
`nn/attention/flex_attention.py` ("called without torch.compile() - this will use an unfused implementation that
materializes the full scores matrix"); transformers 5.17.0, `integrations/flex_attention.py` (compiles it).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import locate_variables, sees_gpu
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

NAMES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


def check(snapshot: Snapshot) -> Problems:
    off = [name for name in NAMES if snapshot.environ.get(name) == "1"]
    if not off or not snapshot.has("transformers") or not sees_gpu(snapshot):
        return
    yield Problem(
        message=f"{' and '.join(off)} leave flex_attention unfused: it would keep every score in memory",
        subject=off[0],
        evidence=tuple(f"environment: {name}=1" for name in off),
        fixes=(*(install.unset_variable(name) for name in off), install.set_attn_implementation(snapshot, "sdpa")),
        locations=locate_variables(snapshot, *off),
    )


RULE = Rule("ATN802", "note", check)
