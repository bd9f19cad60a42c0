"""Cases for ATN170."""

from dataclasses import replace

from attncheck.core.facts import Absent
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

UNPADDING = "flash_attn.bert_padding:unpad_input"


def without_einops() -> Snapshot:
    """Return the recorded machine without einops, and without any lane that imports."""
    bare = s.without_packages(s.h200(), "einops")
    return replace(bare, imports=Absent("not asked"), interfaces=Absent("not asked"))


def with_failing_unpadding(module: str) -> Snapshot:
    """Return it as the import lane sees it: flash_attn imports, its bert_padding does not."""
    reason = f"ModuleNotFoundError: No module named '{module}'"
    return s.with_interfaces(
        s.with_import(without_einops(), "flash_attn"), unpad_input_arity=s.Unreadable(reason), symbols={}
    )


def with_openrlhf(*requires: str) -> Snapshot:
    """Return OpenRLHF with these requirements, on a machine whose flash-attn is complete."""
    return s.with_package(s.h200(), "openrlhf", "0.11.2", requires=requires)


FIRES = {
    "flash-attn without einops, by the files": without_einops(),
    "flash-attn without einops, by the import": with_failing_unpadding("einops"),
    "a framework without a requirement": with_openrlhf("ray[default]==2.55.0"),
    "a launch of it": s.with_job(with_openrlhf("ray[default]==2.55.0")),
    "a framework whose import shows it": s.with_import(
        with_openrlhf("ray[default]==2.55.0"),
        "openrlhf.models",
        "raised",
        exception="ModuleNotFoundError",
        message="No module named 'ray'",
    ),
    "trl imports its parts when they are used": s.with_import(
        s.with_package(s.h200(), "trl", "1.0.0", requires=("datasets>=3.0.0",)), "trl"
    ),
}
SILENT = {
    "a framework that the launch does not use": s.with_job(
        with_openrlhf("ray[default]==2.55.0"), framework="ms-swift", trainer="sft"
    ),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "einops from elsewhere: the import refutes it": s.with_interfaces(
        s.with_import(without_einops(), "flash_attn"), symbols={UNPADDING: True}
    ),
    "flash_attn itself raises for it: ATN108": s.with_import(
        without_einops(), "flash_attn", "raised", exception="ModuleNotFoundError", message="No module named 'einops'"
    ),
    "the framework imports anyway": s.with_import(with_openrlhf("ray[default]==2.55.0"), "openrlhf.models"),
    "only under an extra": with_openrlhf('ray==2.55.0; extra == "vllm"'),
    "only elsewhere": with_openrlhf('ray==2.55.0; sys_platform == "win32"'),
    "the same modules under another name": with_openrlhf("opencv-python", "pillow", "pynvml"),
    "torch, triton, flash-attn: rules of their own": s.without_packages(
        with_openrlhf("flash-attn==2.8.3", "triton", "torch"), "flash-attn", "triton", "torch"
    ),
    "another version is there: ATN147": with_openrlhf("transformers==5.15.0"),
    "flash-attn-4: ATN127": s.with_package(s.h200(), "flash-attn-4", "4.0.0b36", requires=("quack-kernels",)),
    "a package that nobody watches": s.with_package(s.h200(), "wandb", "0.1", requires=("sentry-sdk",)),
    "a requirement that cannot be read": with_openrlhf("ray >> 5"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what is missing and installs it."""
    return "not installed" in finding and any(f"install {name}" in finding for name in ("einops", "ray", "datasets"))
