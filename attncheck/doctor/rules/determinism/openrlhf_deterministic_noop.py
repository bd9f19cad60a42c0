"""Half of OpenRLHF's full-determinism switch has no effect with this transformers.

What it checks: OpenRLHF with transformers 4.54.0 or newer, if CUBLAS_WORKSPACE_CONFIG requests determinism and
FLASH_ATTENTION_DETERMINISTIC is not set.

Why it matters: `--train.full_determinism_enable` sets `transformers.modeling_flash_attention_utils.deterministic_g`,
which only transformers 4.47.0 to 4.53.x reads. Its other half, `enable_full_determinism`, sets
FLASH_ATTENTION_DETERMINISTIC and still works; flash-attn's Triton cross-entropy stays nondeterministic under both.

What to do: nothing for flash attention itself; export FLASH_ATTENTION_DETERMINISTIC=1 for every worker if you do not
use the switch, and expect the last bits of log-probabilities to vary.

Source: openrlhf 0.11.2 `utils/deepspeed/deepspeed.py`, `setup_distributed`; transformers wheels 4.46 to 5.22.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, Version, need, only_if

FIRST_WITHOUT_GLOBAL = Version("4.54.0")


@only_if(Snapshot.has, "openrlhf")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    has_workspace = "CUBLAS_WORKSPACE_CONFIG" in snapshot.environ
    if not has_workspace or snapshot.sets("FLASH_ATTENTION_DETERMINISTIC"):
        return
    transformers = need(snapshot.version("transformers"), "transformers' version")
    if transformers >= FIRST_WITHOUT_GLOBAL:
        yield Problem(
            message=(f"OpenRLHF sets deterministic_g for full determinism, but transformers {transformers} ignores it"),
            subject="openrlhf",
            evidence=(
                f"transformers {transformers}, newer than 4.53",
                "only FLASH_ATTENTION_DETERMINISTIC has an effect",
            ),
            fixes=(install.export_variable("FLASH_ATTENTION_DETERMINISTIC", "1"),),
        )


RULE = Rule("ATN704", "note", check, needs=frozenset({"rl"}))
