"""torch is older than this transformers accepts.

What it checks: torch's version against the minimum of the installed transformers: 2.1 since 4.52, 2.2 since 5.0, 2.4
since 5.1, 2.5 since 5.15, 2.6 since 5.20.

Why it matters: `import transformers` succeeds with one warning, "Disabling PyTorch because PyTorch >= X is required",
and then no model can be loaded ("requires the PyTorch library but it was not found").

What to do: install the newest transformers that supports this torch. A newer torch would require reinstalling every
compiled extension (flash-attn, vllm …).

Source: wheels of transformers 4.51.0-5.23.0, `utils/import_utils.py` (is_torch_available).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn, transformers
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, Version, need, only_if


@only_if(Snapshot.has, "transformers")
@only_if(Snapshot.has, "torch")
def check(snapshot: Snapshot) -> Problems:
    transformers_version = need(snapshot.version("transformers"), "transformers' version")
    torch_version = need(snapshot.version("torch"), "torch's version")
    minimum = transformers.entry_for_version(transformers.MINIMUM_TORCH, transformers_version)
    if minimum is None or torch_version >= Version(minimum):
        return
    specifier = f">=4.43,<{transformers_version.base_version}"
    if snapshot.has("ring-flash-attn"):
        specifier = ring_flash_attn.COMPATIBLE_TRANSFORMERS[ring_flash_attn.LAST_RELEASE_READ]
    transformers_requirements = requirements.resolve_transformers(snapshot, specifier)
    allows = (f"transformers{specifier}",)
    fixes = (
        (install.install_packages(snapshot, *transformers_requirements, allows=allows),)
        if transformers_requirements
        else ()
    )
    yield Problem(
        message=f"transformers {transformers_version} disables torch: it needs {minimum} or newer, "
        f"but {torch_version} is installed",
        subject=f"torch {torch_version}",
        evidence=(f"static lane: transformers {transformers_version} requires torch {minimum}",),
        fixes=(
            *fixes,
            install.install_packages(snapshot, f"torch>={minimum}", title="or a newer torch, and rebuild extensions"),
        ),
    )


RULE = Rule("ATN155", "error", check)
