"""What transformers may answer about a model's attention, for rules' tests."""

from __future__ import annotations

from attncheck.core.facts import Known

FUSED_IMPLEMENTATIONS = ("sdpa", "flash_attention_2", "flex_attention")


def answers_refusing(*names: str) -> Known[dict[str, str]]:
    """Return answers in which the class refuses `names` and accepts the rest."""
    answers = dict.fromkeys(("eager", *FUSED_IMPLEMENTATIONS), "")
    return Known({**answers, **dict.fromkeys(names, "refused: XForCausalLM does not support it yet")})


def answers_with_text(name: str, text: str, *refused: str) -> Known[dict[str, str]]:
    """Return answers with `text` for `name`, refusals for `refused` and "" for the rest."""
    return Known({**answers_refusing(*refused).value, name: text})
