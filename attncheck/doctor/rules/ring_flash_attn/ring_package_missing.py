"""Ring attention is requested, but no package that implements it is installed.

What it checks: whether ring-flash-attn or yunchang is installed, if ring attention matters (`--profile ring` or
`all`). If it was not requested, nothing is reported.

Why it matters: OpenRLHF's `ring_attn_size`, axolotl's `context_parallel_size` and 360-LLaMA-Factory import one of the
two when the job starts, after the model was loaded.

What to do: install ring-flash-attn with a compatible transformers. Ulysses (verl, DeepSpeed, ms-swift) and PyTorch's
own context parallelism need neither package.

Source: openrlhf 0.11.2 METADATA (extra `ring`: ring_flash_attn); ring_flash_attn 0.1.8 `adapters/hf_adapter.py`;
axolotl `utils/schemas/validation.py`.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install, install_flash_attn_package
from attncheck.doctor.knowledge import ring_flash_attn
from attncheck.doctor.queries import is_cpu_build, requirements
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, Version


def check(snapshot: Snapshot) -> Problems:
    if snapshot.has("ring-flash-attn", "yunchang"):
        return
    newest = Version(ring_flash_attn.LAST_RELEASE_READ)
    compatible = ring_flash_attn.compatible_transformers(newest)
    transformers = snapshot.version("transformers")
    fits = not isinstance(transformers, Known) or requirements.is_version_allowed(compatible, transformers.value)
    installed = (
        f"transformers {transformers.value} is installed"
        if isinstance(transformers, Known)
        else "transformers is not installed"
    )
    yield Problem(
        message="ring attention is requested, but neither ring-flash-attn nor yunchang is installed",
        subject="ring-flash-attn",
        evidence=(f"ring-flash-attn {newest} works with transformers {compatible}; {installed}",),
        fixes=tuple(_fixes(snapshot, f"ring-flash-attn=={newest}", "" if fits else compatible)),
    )


def _fixes(snapshot: Snapshot, requirement: str, transformers: str) -> Iterator[Fix]:
    """Yield the requirements of ring attention, in the order in which they are needed."""
    is_alone = snapshot.lists("flash-attn")
    if not is_alone:
        yield from install_flash_attn_package(snapshot)
        if isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value):
            return  # no installed package would run
    yield install.install_packages(snapshot, requirement, options=("--no-deps",), follows=not is_alone)
    transformers_requirements = requirements.resolve_transformers(snapshot, transformers) if transformers else ()
    if transformers_requirements:
        yield install.install_packages(
            snapshot,
            *transformers_requirements,
            title=f"and a transformers that {requirement} supports",
            allows=(f"transformers{transformers}",),
            follows=True,
        )


RULE = Rule("ATN130", "warning", check, needs=frozenset({"ring"}), general=True)
