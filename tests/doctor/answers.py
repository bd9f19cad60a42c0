"""What transformers may answer about a model's attention, for rules' tests."""

from __future__ import annotations

from attncheck.core.facts import Known

FUSED = ("sdpa", "flash_attention_2", "flex_attention")


def refusing(*names: str) -> Known[dict[str, str]]:
    """Return an answer in which the class refuses `names` and accepts the rest."""
    answers = dict.fromkeys(("eager", *FUSED), "")
    return Known({**answers, **dict.fromkeys(names, "refused: XForCausalLM does not support it yet")})


def saying(name: str, text: str, *refused: str) -> Known[dict[str, str]]:
    """Return an answer with `text` for `name`, refusals for `refused` and "" for the rest."""
    return Known({**refusing(*refused).value, name: text})
