"""A compiled package needs a newer libstdc++ than Python loads.

What it checks: the highest GLIBCXX_, CXXABI_ and GCC_ version that each extension requires, against the copies of
libstdc++ and libgcc that the loader uses after torch is imported: by torch's and Python's own search paths,
LD_LIBRARY_PATH, and the system. If the import was tried, its message decides. Otherwise the finding is a prediction.

Why it matters: the import raises "version `GLIBCXX_3.4.32' not found". Unofficial wheels have no manylinux tag, so pip
installs them anywhere. Often the machine has a newer copy, conda's or the system's, but does not load it.

What to do: if the machine has a newer copy, put it first with LD_PRELOAD. Otherwise build the package on this
machine, or install a newer libstdc++ into the conda environment.

Source: glibc, elf/dl-version.c and elf/dl-load.c; Dao-AILab/flash-attention#1428, vllm-project/vllm#12945, #12946,
ecmwf/WeatherGenerator#1988. LD_PRELOAD was run against an extension that the loader had refused with that message
(tests/doctor/test_runtime_libraries.py); installing conda's newer library was not tried.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import avoid_flash_attn, build_flash_attn, install
from attncheck.doctor.queries import (
    FIRST_GCC,
    RuntimeGap,
    can_import,
    copies_of,
    describe_failed_import,
    find_newer_copy,
    find_runtime_gap,
    is_of_the_system,
    parse_runtime_gap,
)
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    refusals: dict[str, tuple[RuntimeGap, str]] = {}
    for outcome in snapshot.imports.value if isinstance(snapshot.imports, Known) else ():
        gap = parse_runtime_gap(outcome.message) if outcome.outcome == "raised" else None
        if gap is not None:
            refusals.setdefault(_owner(snapshot, gap, outcome.module), (gap, describe_failed_import(outcome)))
    for binary in snapshot.binaries:
        gap = find_runtime_gap(snapshot, binary)
        if gap is not None and binary.module and not can_import(snapshot, binary.module):
            refusals.setdefault(binary.distribution, (gap, ""))
    for distribution, (gap, observed) in refusals.items():
        yield _make_problem(snapshot, distribution, gap, observed)


def _owner(snapshot: Snapshot, gap: RuntimeGap, module: str) -> str:
    """Return the distribution of the file that the loader refused, or else the module whose import failed."""
    owners = (b.distribution for b in snapshot.binaries if b.path.rpartition("/")[2] == gap.required_by)
    return next(owners, module.partition(".")[0].replace("_", "-"))


def _make_problem(snapshot: Snapshot, distribution: str, gap: RuntimeGap, observed: str) -> Problem:
    package = snapshot.package(distribution)
    name = f"{distribution} {package.value.version}" if isinstance(package, Known) else distribution
    static = f"static lane: {gap.required_by} needs {gap.required}"
    copies = tuple(
        (
            f"{library.path} ({library.found_by}) provides up to "
            f"{gap.namespace}_{library.provides.get(gap.namespace, '?')}"
        )
        for library in copies_of(snapshot, gap.library)
    )
    return Problem(
        message=f"{name} needs {gap.required}, which the loaded {gap.library} lacks: {gap.path}",
        subject=name,
        evidence=(observed or static, *copies),
        fixes=tuple(_list_fixes(snapshot, distribution, gap)),
        predicted=not observed,
    )


def _list_fixes(snapshot: Snapshot, distribution: str, gap: RuntimeGap) -> Iterator[Fix]:
    newer = find_newer_copy(snapshot, gap)
    if newer is not None:
        title = f"load this machine's newer {gap.library} in every process of the job"
        yield install.export_variable("LD_PRELOAD", newer.path, title)
    if distribution == "flash-attn":
        if is_of_the_system(gap):
            yield from build_flash_attn(snapshot)
        yield from avoid_flash_attn(snapshot)
    if newer is None and snapshot.host.conda:
        yield _upgrade_conda_library(snapshot, gap)
    elif newer is None and distribution != "flash-attn":
        text = f"an older release of {distribution}, or a build of it made on this machine or in a newer container"
        yield Fix(f"use a build that works with this library (not tried here): {text}", "advice", "")


def _upgrade_conda_library(snapshot: Snapshot, gap: RuntimeGap) -> Fix:
    package = "libgcc-ng" if gap.namespace == "GCC" else "libstdcxx-ng"
    gcc = FIRST_GCC.get(gap.version) if gap.namespace == "GLIBCXX" else None
    requirement = install.quote_for_shell(f"{package}>={gcc}" if gcc else package)
    prefix = snapshot.host.prefix
    text = (
        f"conda install -y -p {prefix} -c conda-forge {requirement} && "
        f"export LD_LIBRARY_PATH={prefix}/lib:$LD_LIBRARY_PATH"
    )
    return Fix(f"install a newer {gap.library} into the conda environment (not tried here)", "command", text, "unsafe")


RULE = Rule("ATN166", "error", check)
