"""Cases for ATN153."""

from tests import snapshots as s

FAILED_IMPORT = s.with_import(
    s.h200(), "liger_kernel.transformers", "raised", exception="ImportError", message="cannot import name 'x'"
)
FIRES = {
    "it raises": FAILED_IMPORT,
    "another package is missing": s.with_import(
        s.h200(),
        "liger_kernel.transformers",
        "raised",
        exception="ModuleNotFoundError",
        message="No module named 'einops'",
        frames=("liger_kernel/ops/x.py:3 in <module>",),
    ),
    "its files are not those of its RECORD": s.with_package(
        FAILED_IMPORT, "liger-kernel", "0.8.5", files_altered=("liger_kernel/transformers/rope.py",)
    ),
    "it dies": s.with_import(s.h200(), "liger_kernel.transformers", "died", signal="SIGSEGV"),
}
MISSING = s.make_link(consumer="liger-kernel", breaks=("liger_kernel.transformers",))
SILENT = {
    "a name is missing in transformers: ATN131": s.with_links(FAILED_IMPORT, MISSING),
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "transformers is too old for it: ATN150": s.with_package(FAILED_IMPORT, "transformers", "4.57.6"),
    "triton is missing: ATN152": s.without_packages(FAILED_IMPORT, "triton"),
    "triton is broken": s.with_import(FAILED_IMPORT, "triton", "raised", exception="ImportError", message="x"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what was found; the same release is never installed again."""
    if "No module named" in finding:
        return "install einops" in finding
    return ("cannot import name" in finding or "SIGSEGV" in finding) and (
        ("reinstall" in finding) == ("its files differ" in finding)
    )
