"""The installed `kernels` is incompatible with this transformers.

What it checks: the version of `kernels` against the range that transformers names in its own metadata or, if that is
not available, in a table of its releases. Nearly every minor release of transformers moves the range.

Releases before 5.13 do not check the range, so that only kernels 0.14 and newer, or older than the range, count there.

Why it matters: since 5.13 transformers then treats kernels as missing, so flash_attention_2 does not fall back to the
Hub. 5.0 to 5.12 import it anyway: with kernels 0.14 or newer the Hub's kernels are off, and with 0.17 or newer
`import transformers.modeling_utils` raises "Either a revision or a version must be specified": no model loads. The
last case is an error, the others are warnings.

What to do: install the `kernels` that the finding names.

Source: wheels of transformers 4.50.0-5.23.0, `dependency_versions_table.py` and `utils/import_utils.py`
(KERNELS_MIN_VERSION, KERNELS_MAX_VERSION); the import was tried with 5.0.0, 5.3.0, 5.4.0 and 5.12.0;
huggingface/transformers#46291.
"""

from packaging.requirements import InvalidRequirement, Requirement

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need, only_if

FIRST_CHECKING = "5.13"
MODULES = ("transformers", "transformers.modeling_flash_attention_utils", "transformers.modeling_utils")


@only_if(Snapshot.has, "kernels")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    kernels_version = need(snapshot.version("kernels"), "the version of kernels")
    transformers_version = need(snapshot.version("transformers"), "transformers' version")
    specifier, source = _required_kernels(snapshot)
    if not specifier or requirements.is_version_allowed(specifier, kernels_version):
        return
    lower = ",".join(part for part in specifier.split(",") if not part.startswith("<"))
    is_unchecked = transformers_version < Version(FIRST_CHECKING) and kernels_version < Version(
        transformers.FIRST_KERNELS_NOT_USED
    )
    if is_unchecked and requirements.is_version_allowed(lower, kernels_version):
        return
    import_failure = _import_failure_evidence(snapshot, transformers_version, kernels_version)
    installed = f"{kernels_version} is installed"
    if import_failure:
        installed = f"kernels {kernels_version} breaks the import of its models"
    yield Problem(
        message=f"transformers {transformers_version} works with kernels{specifier}; {installed}",
        subject=f"kernels {kernels_version}",
        evidence=(source, import_failure) if import_failure else (source,),
        fixes=(install.install_packages(snapshot, f"kernels{specifier}"),),
        predicted=not import_failure,
    )


def _import_failure_evidence(snapshot: Snapshot, transformers_version: Version, kernels_version: Version) -> str:
    """Return the evidence that models cannot be imported, or ""; the import lane takes precedence over the table."""
    outcomes = [fact.value for name in MODULES if isinstance(fact := snapshot.imported(name), Known)]
    for outcome in outcomes:
        if outcome.outcome == "raised" and transformers.KERNELS_ERROR in outcome.message:
            return f"import lane: {outcome.exception}: {outcome.message}"
    if any(outcome.module == MODULES[-1] and outcome.outcome == "ok" for outcome in outcomes):
        return ""
    unguarded = requirements.is_version_allowed(transformers.KERNELS_UNGUARDED, transformers_version)
    breaks = unguarded and kernels_version >= Version(transformers.FIRST_KERNELS_BREAKING_IMPORT)
    return f'static lane: "{transformers.KERNELS_ERROR}"' if breaks else ""


def _required_kernels(snapshot: Snapshot) -> tuple[str, str]:
    """Return transformers' specifier for kernels and its location; "" if unknown."""
    distribution = need(snapshot.package("transformers"), "transformers")
    for line in distribution.requires:
        if line.startswith("kernels"):
            try:
                return str(Requirement(line).specifier), f"METADATA of transformers: {line}"
            except InvalidRequirement:
                continue
    version = need(snapshot.version("transformers"), "transformers' version")
    if requirements.is_version_allowed(f">{transformers.LAST_RELEASE_READ}", version):
        return "", ""
    specifier = transformers.entry_for_version(transformers.COMPATIBLE_KERNELS, version) or ""
    return specifier, "static lane: from the table of transformers' releases"


RULE = Rule("ATN149", "error", check)
