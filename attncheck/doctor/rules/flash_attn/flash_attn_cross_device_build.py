"""Installing flash-attn by name fails because the wheel is moved between two file systems.

What it checks: if flash-attn is missing or must be replaced and a published wheel is compatible: whether pip 25.3 or
newer would build it on a different file system (TMPDIR) from its cache.

Why it matters: flash-attn's setup.py downloads the wheel next to its sources and renames it into pip's output folder,
which pip 25.3 puts into its cache: "OSError: [Errno 18] Invalid cross-device link". /tmp in memory, and a home folder
on a network disk, are two file systems on most clusters.

What to do: install the wheel by its URL, build without pip's cache, or put TMPDIR on the cache's file system.

Source: flash-attn 2.8.3, setup.py, `CachedWheelsCommand.run` (`os.rename`); pip 25.3 `_internal/wheel_builder.py`
(TemporaryDirectory(dir=output_dir), where 25.2 has TMPDIR); Dao-AILab/flash-attention#598, #875, #2213. Run with
pip 26.3, TMPDIR on /dev/shm and such a rename: Errno 18; with --no-cache-dir the wheel is built.
"""

from packaging.version import InvalidVersion, Version

from attncheck.doctor.fixes import find_published_wheel, flash_attn_fixes, install
from attncheck.doctor.queries.packages import diagnose_flash_attn
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, value_or

FIRST_PIP = Version("25.3")


def check(snapshot: Snapshot) -> Problems:
    tools = snapshot.build_tools
    if tools.pip_cache_apart != Known(True) or not _is_recent(value_or(tools.pip, "")):
        return
    is_installed = snapshot.has("flash-attn") and diagnose_flash_attn(snapshot) is None
    if "no-cache-dir" in tools.pip_config or is_installed:
        return
    if find_published_wheel(snapshot) is None:
        return
    yield Problem(
        message="`pip install flash-attn` would fail here: pip's cache and TMPDIR are on different file systems",
        subject="flash-attn",
        evidence=(
            f"pip {value_or(tools.pip, '')} builds inside its cache, and flash-attn's setup.py moves "
            "files into it with rename",
        ),
        fixes=(
            *flash_attn_fixes(snapshot),
            install.export_variable("PIP_NO_CACHE_DIR", "1", "or install it by name, without pip's cache"),
        ),
    )


def _is_recent(pip: str) -> bool:
    try:
        return Version(pip) >= FIRST_PIP
    except InvalidVersion:
        return False


RULE = Rule("ATN173", "note", check, needs=frozenset({"flash"}))
