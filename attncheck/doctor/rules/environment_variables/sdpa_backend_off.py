"""A fused SDPA backend is switched off.

What it checks: the answers of `torch.backends.cuda.flash_sdp_enabled()` and its siblings, in a child process that
imported torch.

Why it matters: with FLASH_ATTENTION and EFFICIENT_ATTENTION off, sdpa uses MATH, which is many times slower and keeps
the scores of every head in memory. If only CUDNN_ATTENTION is off, that is a known workaround and not a defect.

What to do: find what switches it off (a sitecustomize, a patched torch) and remove that.

Source: torch 2.13.0 `backends/cuda/__init__.py` (`enable_flash_sdp`, `enable_mem_efficient_sdp`, `enable_cudnn_sdp`).
"""

from attncheck.doctor.queries.covering import require_import
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, need

SWITCHES = {"FLASH_ATTENTION": "enable_flash_sdp", "EFFICIENT_ATTENTION": "enable_mem_efficient_sdp"}


def check(snapshot: Snapshot) -> Problems:
    require_import(snapshot, "torch")
    switches = need(need(snapshot.torch, "torch").sdpa_switches, "the state of SDPA's backends")
    off = [name for name in SWITCHES if switches.get(name) is False]
    if not off:
        return
    yield Problem(
        message=f"SDPA without {' and '.join(off)}: switched off when torch is imported",
        subject="torch",
        evidence=tuple(f"import lane: {name} is {'on' if value else 'off'}" for name, value in switches.items()),
        fixes=(
            Fix(
                "switch it on again",
                "edit",
                "\n".join(f"torch.backends.cuda.{SWITCHES[name]}(True)" for name in off),
            ),
        ),
    )


RULE = Rule("ATN558", "warning", check)
