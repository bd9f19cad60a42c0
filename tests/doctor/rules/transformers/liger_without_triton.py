"""Cases for ATN152."""

from dataclasses import replace

from tests import snapshots as s

NOT_IMPORTED = replace(s.h200(), imports=s.Absent("not requested"))

FIRES = {
    "no triton on a GPU machine": s.without_packages(NOT_IMPORTED, "triton"),
    "the import says so": s.with_import(
        s.without_packages(NOT_IMPORTED, "triton"),
        "triton",
        "raised",
        exception="ModuleNotFoundError",
        message="triton",
    ),
    "no GPU, and the import says so": s.with_import(
        s.with_package(s.laptop(), "liger-kernel", "0.8.5"),
        "liger_kernel.transformers",
        "raised",
        exception="ModuleNotFoundError",
        message="No module named 'triton'",
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "no GPU, and not imported": s.with_package(s.laptop(), "liger-kernel", "0.8.5"),
    "ROCm's triton": s.with_package(s.without_packages(NOT_IMPORTED, "triton"), "pytorch-triton-rocm", "3.4.0"),
    "triton comes from elsewhere": s.with_import(s.without_packages(NOT_IMPORTED, "triton"), "triton", "ok"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the command."""
    return "install triton" in finding
