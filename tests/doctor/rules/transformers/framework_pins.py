"""Cases for ATN147."""

from tests import snapshots as s
from tests.doctor.rules.transformers.frameworks_cannot_share import with_frameworks

VERL_REQUIRES = "transformers!=5.6.0,<5.11,>=5.5.3"
OPENRLHF_REQUIRES = (
    "flash-attn==2.8.3",
    "transformers==5.15.0",
    'vllm==0.29.0; extra == "vllm"',
    "ray[default]==2.55.0",
)

FIRES = {
    "a launch of one of two that no release pleases": s.with_job(
        with_frameworks("transformers==5.15.0", "transformers<5.11")
    ),
    "a launch of it": s.with_job(
        s.with_package(s.h200(), "verl", "0.9.1", requires=(VERL_REQUIRES,)), framework="verl", trainer="sft"
    ),
    "OpenRLHF on transformers 5.17": s.with_package(s.h200(), "openrlhf", "0.11.2", requires=OPENRLHF_REQUIRES),
    "verl on 5.11.0": s.with_package(
        s.with_package(s.h200(), "transformers", "5.11.0"), "verl", "0.9.1", requires=(VERL_REQUIRES,)
    ),
    "verl on the release it excludes": s.with_package(
        s.with_package(s.h200(), "transformers", "5.6.0"), "verl", "0.9.1", requires=(VERL_REQUIRES,)
    ),
    "a marker that holds here": s.with_package(
        s.h200(), "trl", "1.0.0", requires=('transformers<5; python_version >= "3.12"',)
    ),
}
SILENT = {
    "a launch of another framework": s.with_job(
        s.with_package(s.h200(), "verl", "0.9.1", requires=(VERL_REQUIRES,)), framework="trl", trainer="sft"
    ),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "verl on 5.10.4": s.with_package(
        s.with_package(s.h200(), "transformers", "5.10.4"), "verl", "0.9.1", requires=(VERL_REQUIRES,)
    ),
    "only under an extra": s.with_package(
        s.h200(), "verl", "0.9.1", requires=('transformers==5.9.0; extra == "vllm"',)
    ),
    "only elsewhere": s.with_package(s.h200(), "trl", "1.0.0", requires=('transformers<5; sys_platform == "win32"',)),
    "torch with a local version": s.with_package(s.h200(), "verl", "0.9.1", requires=("torch==2.11.0",)),
    "a requirement that cannot be read": s.with_package(s.h200(), "trl", "1.0.0", requires=("transformers >> 5",)),
    "a tool that has nothing to do with attention": s.with_package(
        s.with_package(s.h200(), "wandb", "0.1"), "trl", "1.0.0", requires=("wandb>=1",)
    ),
    "two that contradict one another: ATN148": s.with_package(
        s.with_package(s.h200(), "openrlhf", "0.11.2", requires=("transformers==5.15.0",)),
        "verl",
        "0.9.1",
        requires=(VERL_REQUIRES,),
    ),
    "torchvision's torch: ATN123": s.with_package(s.h200(), "torchvision", "0.23.0", requires=("torch==2.8.0",)),
    "vllm's torch: ATN156": s.with_package(s.h200(), "vllm", "0.29.0", requires=("torch==2.12.0",)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the requirement and what is here."""
    return "requires transformers" in finding and "(here: 5." in finding
