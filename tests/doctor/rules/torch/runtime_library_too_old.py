"""Cases for ATN166."""

from dataclasses import replace

from attncheck.core.environment import RuntimeLibrary
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import with_flash_attn_extension

SYSTEM = RuntimeLibrary(
    "libstdc++.so.6", "/lib/x86_64-linux-gnu/libstdc++.so.6", "system", {"GLIBCXX": "3.4.28", "CXXABI": "1.3.12"}
)
CONDA = RuntimeLibrary("libstdc++.so.6", "~/conda/lib/libstdc++.so.6", "prefix", {"GLIBCXX": "3.4.34"})
MESSAGE = (
    "/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by "
    "~/env/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so)"
)
NEEDS_NEWER = with_flash_attn_extension("2.8.0+cu128", "12.8", versions_required={"GLIBCXX": "3.4.32"})
REFUSED = s.with_import(
    with_flash_attn_extension("2.8.0+cu128", "12.8"),
    "flash_attn_2_cuda",
    "raised",
    exception="ImportError",
    message=MESSAGE,
)


def with_copies(snapshot: Snapshot, *copies: RuntimeLibrary) -> Snapshot:
    """Return the machine where these copies of libstdc++ were found, the first one loaded."""
    return replace(snapshot, runtime_libraries=copies)


FIRES = {
    "the import says so": with_copies(REFUSED, SYSTEM),
    "the import says so, and no library was read": REFUSED,
    "static: flash-attn": with_copies(NEEDS_NEWER, SYSTEM),
    "static: xformers": with_copies(
        s.with_binary(
            s.with_package(s.h200(), "xformers", "0.0.35"),
            "xformers._C",
            distribution="xformers",
            versions_required={"GLIBCXX": "3.4.32", "CXXABI": "1.3.15"},
        ),
        SYSTEM,
    ),
    "the machine can build it": s.with_build_tools(with_copies(REFUSED, SYSTEM), nvcc=s.Known("12.8")),
    "conda has a newer one": with_copies(REFUSED, SYSTEM, CONDA),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the newer one is loaded": with_copies(NEEDS_NEWER, CONDA, SYSTEM),
    "it was imported": with_copies(s.with_import(NEEDS_NEWER, "flash_attn_2_cuda"), SYSTEM),
    "glibc: ATN106": with_copies(
        s.with_import(s.h200(), "flash_attn", "raised", message="libc.so.6: version `GLIBC_2.32' not found"), SYSTEM
    ),
    "compared as versions": with_copies(
        with_flash_attn_extension("2.8.0+cu128", "12.8", versions_required={"GLIBCXX": "3.4.9"}), SYSTEM
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what is missing, and where."""
    builds = "build flash-attn" not in finding or "FLASH_ATTENTION_FORCE_BUILD=TRUE" in finding
    return builds and "3.4.32" in finding and "loaded libstdc++.so.6 lacks" in finding
