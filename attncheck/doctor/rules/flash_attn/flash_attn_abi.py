"""flash-attn was built for another torch.

What it checks: the C++ symbols that flash-attn's extension needs from torch, compared with those that the installed
torch exports, both read from the files. If the import was tried, its outcome decides. If torch is a CPU build, which
has no CUDA symbols, the finding says so.

Why it matters: `import flash_attn` raises "undefined symbol", hours into a queue or at the first forward, because
transformers reports flash-attn as available without importing it. The extension works with one minor version of torch
and one C++ ABI, and the version "2.8.3" does not show which. Upgrading torch, or installing vllm or sglang, breaks
it.

What to do: install the wheel for this torch, or build it again without pip's cache; the finding has the command. Then
pin torch with a constraints file.

Source: Dao-AILab/flash-attention#723, #931, #940, #919, #836, #709, #1832, #853, #1717; instructlab/training#494.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes.flash_attn import describe_wheel_tags, flash_attn_fixes
from attncheck.doctor.queries import (
    availability_evidence,
    demangle_hint,
    describe_failed_import,
    diagnose_flash_attn,
    flash_attn_extension,
    flash_attn_import_failure,
    knows_torch_symbols,
    may_import,
    need_torch,
    parse_missing_symbol,
    require_torch,
)
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, only_if


@only_if(may_import, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    fault = diagnose_flash_attn(snapshot)
    if fault in (None, "other") and snapshot.has("flash-attn"):
        need_torch(snapshot)
    if fault not in ("abi", "cpu-torch"):
        return
    if not knows_torch_symbols(snapshot):
        require_torch(snapshot)
    torch = need_torch(snapshot).version
    package = snapshot.package("flash-attn")
    version = package.value.version if isinstance(package, Known) else ""
    symbols = _missing_symbols(snapshot)
    missing = f"it lacks {demangle_hint(symbols[0])}" if symbols else "a symbol is missing"
    others = f" and {len(symbols) - 1} more" if len(symbols) > 1 else ""
    message = f"flash-attn {version} was not built for torch {torch}: {missing}{others}"
    if fault == "cpu-torch":
        message = f"flash-attn {version} needs a torch with CUDA; torch {torch} is a CPU build"
    yield Problem(
        message=message,
        subject=f"flash-attn {version}",
        evidence=tuple(_evidence(snapshot, symbols) if fault == "abi" else _cpu_torch_evidence(snapshot)),
        fixes=flash_attn_fixes(snapshot),
    )


def _missing_symbols(snapshot: Snapshot) -> tuple[str, ...]:
    failure, binary = flash_attn_import_failure(snapshot), flash_attn_extension(snapshot)
    from_import = parse_missing_symbol(failure.message) if failure else ""
    from_binary = binary.missing_symbols if binary else ()
    return tuple(dict.fromkeys((*((from_import,) if from_import else ()), *from_binary)))


def _evidence(snapshot: Snapshot, symbols: tuple[str, ...]) -> Iterator[str]:
    failure, binary = flash_attn_import_failure(snapshot), flash_attn_extension(snapshot)
    if failure is not None:
        yield describe_failed_import(failure)
    if binary is not None and binary.missing_symbols:
        yield (
            f"static lane: {len(binary.missing_symbols)} of the {binary.torch_symbols} symbols that "
            f"{binary.path} needs from torch are not exported"
        )
    if symbols:
        yield f"for instance {symbols[0]}"
    yield f"this environment: {describe_wheel_tags(snapshot)}"
    yield from availability_evidence(snapshot)


def _cpu_torch_evidence(snapshot: Snapshot) -> Iterator[str]:
    failure, binary = flash_attn_import_failure(snapshot), flash_attn_extension(snapshot)
    if failure is not None:
        yield describe_failed_import(failure)
    elif binary is not None:
        needed = [name for name in binary.needed if name.startswith(("libtorch_cuda", "libc10_cuda"))]
        yield f"static lane: {binary.path} needs {', '.join(needed)}"
    if not snapshot.visible_devices():
        yield "no GPU is visible here, so flash-attn could not run anyway"


RULE = Rule("ATN104", "error", check, needs=frozenset({"flash", "ring"}))
