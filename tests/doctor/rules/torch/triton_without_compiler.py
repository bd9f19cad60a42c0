"""Cases for ATN172."""

from tests import snapshots as s

NO_GCC = s.with_build_tools(s.h200(), c_compiler=s.Absent("CC is not set, and neither gcc nor clang is on PATH"))
NO_HEADERS = s.with_build_tools(s.h200(), python_headers=s.Absent("/usr/include/python3.12 has no Python.h"))
WITHOUT_USERS = s.without_packages(NO_GCC, "liger-kernel")

FIRES = {
    "no compiler under liger-kernel": NO_GCC,
    "no headers": NO_HEADERS,
    "a launch that compiles": s.with_job(WITHOUT_USERS, {"compile": True}),
    "conda": s.with_host(NO_GCC, conda=True),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "in order": s.with_build_tools(s.h200(), c_compiler=s.Known("/usr/bin/gcc"), python_headers=s.Known("/x")),
    "nothing uses triton": WITHOUT_USERS,
    "no GPU": s.with_gpus(NO_GCC),
    "no triton: ATN152": s.without_packages(NO_GCC, "triton"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text tells what is missing and how to get it."""
    return "triton needs" in finding and "install -y" in finding
