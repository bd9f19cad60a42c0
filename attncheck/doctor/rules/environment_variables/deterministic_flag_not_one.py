"""FLASH_ATTENTION_DETERMINISTIC is set to a value that means "off".

What it checks: the variable's value. transformers and ring-flash-attn compare it with "1", so "true", "yes" and "on"
mean off.

Why it matters: flash-attn's backward pass still sums dq in the order in which blocks finish, without a warning.

What to do: set it to 1.

Source: transformers 4.43.0-5.23.0, `modeling_flash_attention_utils.py`; ring_flash_attn 0.1.8,
`adapters/hf_adapter.py`.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

FLAG = "FLASH_ATTENTION_DETERMINISTIC"
MEANT_OFF = ("", "0", "false", "no", "off")


def check(snapshot: Snapshot) -> Problems:
    value = snapshot.environ.get(FLAG, "").strip()
    if value == "1" or value.lower() in MEANT_OFF:
        return
    yield Problem(
        message=f"{FLAG}={value} means off: only 1 means on",
        subject=FLAG,
        evidence=(f"environment: {FLAG}={value}",),
        fixes=(install.export_variable(FLAG, "1"),),
        locations=locate_variables(snapshot, FLAG),
    )


RULE = Rule("ATN709", "warning", check)
