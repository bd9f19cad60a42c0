"""Cases for ATN163."""

from tests import snapshots as s

LLAMAFACTORY = s.with_package(s.laptop(), "llamafactory", "0.9.4")

FIRES = {
    "without flash-attn": LLAMAFACTORY,
    "a launch with fa2": s.with_job(
        LLAMAFACTORY, {"attn_implementation": "flash_attention_2"}, framework="llamafactory"
    ),
}
SILENT = {
    "a launch of another framework": s.with_job(LLAMAFACTORY, framework="trl", trainer="sft"),
    "a launch with flash_attn: auto": s.with_job(LLAMAFACTORY, {"attn_implementation": ""}, framework="llamafactory"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "with flash-attn": s.with_package(s.h200(), "llamafactory", "0.9.4"),
    "flash_attn comes from elsewhere": s.with_interfaces(
        LLAMAFACTORY, availability={"is_flash_attn_2_available": True}
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the setting."""
    return "flash_attn: sdpa" in finding
