"""Cases for ATN154."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

HUB_ERROR = (
    "huggingface-hub>=1.3.0,<2.0 is required for a normal functioning of this module, but found "
    "huggingface-hub==0.36.0."
)


def with_failed_import(module: str, message: str) -> Snapshot:
    """Return the machine where importing `module` raised."""
    return s.with_import(s.h200(), module, "raised", exception="ImportError", message=message)


def with_companion_of_another_torch(snapshot: Snapshot, operator: str) -> Snapshot:
    """Return the machine with a torchvision whose operators torch does not register."""
    return s.with_import(
        s.with_package(snapshot, "torchvision", "0.28.0"),
        "transformers.modeling_utils",
        "raised",
        exception="RuntimeError",
        message=f"operator torchvision::{operator} does not exist",
        frames=("torchvision/_meta_registrations.py:163 in <module>", "torch/library.py:1063 in register"),
    )


FIRES = {
    "torchvision of another torch": with_companion_of_another_torch(s.h200(), "nms"),
    "torchvision of another torch, required": with_companion_of_another_torch(
        s.with_package(s.h200(), "llamafactory", "0.9.5", requires=("torchvision>=0.19.0",)), "roi_align"
    ),
    "a companion is too old": with_failed_import("transformers", HUB_ERROR),
    "modeling_utils fails": with_failed_import(
        "transformers.modeling_utils", "cannot import name 'LayerRepository' from 'kernels'"
    ),
    "a module is missing": s.with_import(
        s.h200(), "transformers", "raised", exception="ModuleNotFoundError", message="No module named 'yaml'"
    ),
    "numpy 2 under a package of numpy 1": with_failed_import(
        "transformers.modeling_utils", "numpy.core.multiarray failed to import: _ARRAY_API not found"
    ),
    "a file in the way": replace(
        with_failed_import("transformers", "cannot import name 'Tokenizer' from 'tokenizers' (./tokenizers.py)"),
        shadows=("tokenizers at ./tokenizers.py",),
    ),
    "it dies": s.with_import(s.h200(), "transformers", "died", signal="SIGSEGV"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "torch is broken": s.with_import(
        with_failed_import("transformers", "x"), "torch", "raised", exception="OSError", message="x"
    ),
    "flash_attn is broken": s.with_import(
        with_failed_import("transformers.modeling_flash_attention_utils", "x"), "flash_attn", "died", signal="SIGSEGV"
    ),
    "not installed": s.without_packages(with_failed_import("transformers", HUB_ERROR), "transformers"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a fix."""
    expected = {
        "huggingface-hub": "'huggingface-hub>=1.3.0,<2.0'",
        "LayerRepository": "'kernels>=0.16.0,<0.17'",
        "yaml": "PyYAML",
        "_ARRAY_API": "'numpy<2'",
        "./tokenizers.py": "rename or delete it",
        "SIGSEGV": "--force-reinstall",
        "torchvision::nms": "pip uninstall",
        "torchvision::roi_align": "--no-deps --index-url https://download.pytorch.org/whl/cu130 torchvision==0.26.0",
    }
    fixes = finding.split("fixes=")[1]
    return next(fix for told, fix in expected.items() if told in finding) in fixes
