"""xformers is installed but cannot run any of its operators.

What it checks: if torch has CUDA, whether xformers' compiled library exists, was built with CUDA and for this Python,
and finds the CUDA runtime that it was linked against. Symbols that torch lacks are ATN123.

Why it matters: xformers catches the loader's error, so the import succeeds with a warning, but the first
memory_efficient_attention raises NotImplementedError: "xFormers wasn't build with CUDA support".

What to do: install the build for torch's CUDA from PyTorch's index, or use sdpa, which has the same kernel built in.

Source: xformers 0.0.35, `xformers/_cpp_lib.py` (`_register_extensions`, OSError is caught) and
`xformers/ops/fmha/common.py` (the message); its PyPI wheel is linked against libcudart.so.12. Seen with torch
2.11.0+cu130 on one H200. Installing from PyTorch's index was not tried; sdpa's EFFICIENT kernel was run there.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.torch_builds import INDEX_URL
from attncheck.doctor.queries import is_cpu_build, need_torch
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need, only_if

MODULE = "xformers._C"


@only_if(Snapshot.has, "xformers")
def check(snapshot: Snapshot) -> Problems:
    torch = need_torch(snapshot)
    defect = "" if is_cpu_build(torch) else _find_defect(snapshot)
    if not defect:
        return
    version = need(snapshot.package("xformers"), "xformers").version
    build = snapshot.build("xformers")
    built_for = f"torch {build.value.torch}, CUDA {build.value.cuda or 'none'}" if isinstance(build, Known) else ""
    yield Problem(
        message=f"xformers {version} has no operators under torch {torch.version}: {defect}",
        subject=f"xformers {version}",
        evidence=(
            *((f"xformers/cpp_lib.json: built for {built_for}",) if built_for else ()),
            "importing xformers.ops only warns; the first call raises",
        ),
        fixes=tuple(_list_fixes(snapshot, version, torch.version.partition("+")[2])),
    )


def _find_defect(snapshot: Snapshot) -> str:
    """Return why the operators cannot be loaded; "" if nothing shows that they cannot."""
    build, binary = snapshot.build("xformers"), snapshot.binary(MODULE)
    if (
        isinstance(build, Known)
        and not build.value.cuda
        and not (isinstance(snapshot.torch, Known) and isinstance(snapshot.torch.value.hip, Known))
    ):
        return "it was built without CUDA"
    if not isinstance(binary, Known):
        return ""
    if binary.value.problem:
        return f"its library is {binary.value.problem}"
    runtime = next((name for name in binary.value.unresolved if name.startswith("libcudart")), "")
    return f"they need {runtime}, which was not found" if runtime else ""


def _list_fixes(snapshot: Snapshot, version: str, local: str) -> Iterator[Fix]:
    if local.startswith("cu"):
        yield install.install_packages(
            snapshot,
            f"xformers=={version}",
            options=("--no-deps", "--force-reinstall", "--index-url", f"{INDEX_URL}/{local}"),
            title="install the build for this CUDA, if PyTorch's index has one (not tried)",
        )
    yield install.set_attn_implementation(snapshot, "sdpa")


RULE = Rule("ATN167", "warning", check)
