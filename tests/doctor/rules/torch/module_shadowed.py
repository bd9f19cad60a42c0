"""Cases for ATN118."""

from dataclasses import replace

from tests import snapshots as s

FIRES = {
    "a clone next to the script": replace(s.h200(), shadows=("flash_attn at ~/flash-attention/flash_attn",)),
    "an empty leftover": replace(
        s.h200(), shadows=("flash_attn at /opt/venv/lib/python3.12/site-packages/flash_attn (no __init__.py)",)
    ),
}
SILENT = {"the recorded machine": replace(s.h200(), shadows=()), "the laptop": s.laptop()}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "import flash_attn takes" in finding and "move it away" in finding
