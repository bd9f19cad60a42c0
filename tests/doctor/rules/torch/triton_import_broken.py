"""Cases for ATN171."""

from dataclasses import replace

from tests import snapshots as s

TRITON = s.with_package(s.h200(), "triton", "3.2.0")
NO_SETUPTOOLS = s.with_import(
    TRITON,
    "triton",
    "raised",
    exception="ModuleNotFoundError",
    message="No module named 'setuptools'",
    frames=("triton/runtime/jit.py:11 in <module>", "triton/runtime/build.py:8 in <module>"),
)

FIRES = {
    "setuptools is missing": NO_SETUPTOOLS,
    "nobody needs it yet": s.without_packages(NO_SETUPTOOLS, "liger-kernel"),
    "its library is broken": s.with_import(
        TRITON, "triton", "raised", exception="ImportError", message="libtriton.so: file too short"
    ),
    "it dies": s.with_import(TRITON, "triton", "died", signal="SIGILL"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "not installed": s.without_packages(NO_SETUPTOOLS, "triton"),
    "shadowed: ATN118": replace(NO_SETUPTOOLS, shadows=("triton at ./triton",)),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a fix."""
    fixed = "install setuptools" in finding if "setuptools" in finding else "--force-reinstall" in finding
    return "triton 3.2.0 cannot be imported" in finding and fixed
