"""transformers, or the part of it that every model needs, cannot be imported.

What it checks: how importing `transformers`, `transformers.modeling_flash_attention_utils` and
`transformers.modeling_utils` ended in a child process, if torch itself can be imported and a broken flash_attn is not
the cause.

Why it matters: nothing can be trained. The usual cause is a related package (huggingface-hub, tokenizers, kernels,
numpy …) outside the range that transformers checks when it is imported.

What to do: if the message names a requirement, install it. If a module is missing, or a package lacks a name, install
it in the range that transformers requires. Replace a torchvision built for another torch; remove it only if no
installed package requires it. Reinstall a package only if its files were changed; otherwise the same files would raise
the same error.

Source: transformers 4.43.0-5.23.0, `dependency_versions_check.py` and `utils/versions.py` ("X is required for a normal
functioning of this module, but found Y"); the import lane's own observation.
"""

import re

from attncheck.doctor.fixes import install, install_companion, reinstall_from_own_index
from attncheck.doctor.knowledge.transformers import COMPATIBLE_KERNELS, KERNELS_ERROR, entry_for_version
from attncheck.doctor.queries import (
    can_import,
    find_failed_import,
    find_failing_distribution,
    hidden_by,
    is_shadowed,
    missing_module,
    require_dependencies,
    require_torch,
    requirements,
)
from attncheck.doctor.rules import (
    Distribution,
    Fix,
    ImportOutcome,
    Known,
    Problem,
    Problems,
    Rule,
    Snapshot,
    Version,
    need,
    only_if,
)

MODULES = ("transformers", "transformers.modeling_flash_attention_utils", "transformers.modeling_utils")
DEPENDENCIES = ("torch", "flash_attn")
FILE_ERRORS = ("FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError")  # a path, not a package
REQUIRED_PACKAGES = ("transformers", "torch", "tokenizers", "huggingface-hub", "numpy")  # those that ATN117 watches
DISTRIBUTION_OF = {"yaml": "PyYAML", "PIL": "pillow", "sklearn": "scikit-learn", "cv2": "opencv-python-headless"}
_CANNOT_IMPORT = re.compile(r"cannot import name '(\w+)' from '(\w+)")
_NUMPY_1 = re.compile(r"compiled using NumPy 1\.x|numpy\.dtype size changed|_ARRAY_API not found")
_COMPANION = re.compile(r"operator (torchvision|torchaudio)::\w+ does not exist")
_REQUIRED = re.compile(r"([A-Za-z0-9._-]+[<>=!~][^ ]*) is required for a normal functioning of this module")


@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    need(snapshot.imports, "how imports ended")
    outcome = find_failed_import(snapshot, *MODULES)
    if outcome is None:
        if not can_import(snapshot, MODULES[0]):
            require_torch(snapshot)
        return
    require_dependencies(snapshot, outcome, DEPENDENCIES)
    package = need(snapshot.package("transformers"), "transformers")
    if outcome.outcome == "raised" and KERNELS_ERROR in outcome.message:
        return  # ATN149
    if _has_damaged_package(snapshot) or is_shadowed(snapshot, "transformers"):
        raise hidden_by("transformers")
    error = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    culprit = _find_companion(snapshot, outcome) or find_failing_distribution(snapshot, outcome) or package
    blame = "" if culprit.name == "transformers" else f", in {culprit.name} {culprit.version}"
    yield Problem(
        message=f"importing {outcome.module} {package.version} {outcome.outcome}{blame}",
        subject=f"transformers {package.version}",
        evidence=(
            f"import lane: {' '.join((error or outcome.outcome).split())}",
            *outcome.frames[-3:],
            *(f"shadowed by {shadow}" for shadow in _find_shadows(snapshot, outcome)),
        ),
        fixes=(*install.extend_import_timeout(outcome), _choose_fix(snapshot, outcome, culprit)),
    )


def _find_companion(snapshot: Snapshot, outcome: ImportOutcome) -> Distribution | None:
    """Return torchvision or torchaudio if it was built for another torch, so that its operators are not registered."""
    match = _COMPANION.search(outcome.message)
    companion = snapshot.package(match.group(1)) if match else None
    return companion.value if isinstance(companion, Known) else None


def _find_shadows(snapshot: Snapshot, outcome: ImportOutcome) -> list[str]:
    """Return the files outside every package (ATN118) that the failed import passed through."""
    shadowed = (shadow for shadow in snapshot.shadows if shadow.partition(" at ")[0])
    text = " ".join((outcome.message, *outcome.frames))
    return [shadow for shadow in shadowed if re.search(rf"\b{re.escape(shadow.partition(' at ')[0])}\b", text)]


def _has_damaged_package(snapshot: Snapshot) -> bool:
    """Return whether ATN117 reports a package that transformers requires."""
    return any(
        distribution.name in REQUIRED_PACKAGES and distribution.problem not in ("", "RECORD is missing")
        for distribution in snapshot.distributions
    )


def _choose_fix(snapshot: Snapshot, outcome: ImportOutcome, culprit: Distribution) -> Fix:
    if culprit.name in ("torchvision", "torchaudio"):
        torch = snapshot.version("torch")
        if isinstance(torch, Known) and requirements.version_constraints(snapshot, culprit.name):
            return install_companion(snapshot, culprit.name, torch.value)
        title = f"remove {culprit.name}, built for another torch: transformers imports without it"
        return install.uninstall_packages(snapshot, culprit.name, title=title)
    requirement = _REQUIRED.search(outcome.message)
    if requirement:
        return install.install_packages(snapshot, requirement.group(1))
    shadows = _find_shadows(snapshot, outcome)
    if shadows:
        path = shadows[0].partition(" at ")[2].partition(" (")[0]
        return Fix("move it away", "manual", f"{path}: run elsewhere, or rename or delete it")
    if outcome.exception in FILE_ERRORS:
        return Fix("make the path usable, or use another", "manual", outcome.message)
    module = missing_module(outcome)
    if module not in ("", "transformers"):
        return _install_for_transformers(snapshot, module, ("--force-reinstall", "--no-deps"))
    importer = _CANNOT_IMPORT.search(outcome.message)
    package = importer.group(2) if importer else ""
    if package not in ("", "transformers", culprit.name):
        return _install_for_transformers(snapshot, package)
    if _NUMPY_1.search(outcome.message):
        return install.install_packages(
            snapshot, "numpy<2", title="install numpy 1, which that package was compiled for"
        )
    if culprit.files_missing or culprit.files_altered or outcome.outcome == "died" or not outcome.frames:
        return reinstall_from_own_index(snapshot, culprit)
    if culprit.name != "transformers":
        return _install_for_transformers(snapshot, culprit.name)
    command = f"{snapshot.host.executable} -X importtime -c 'import {outcome.module}'"
    return Fix("see where it fails; its own files are unchanged", "advice", command)


def _install_for_transformers(snapshot: Snapshot, module: str, over: tuple[str, ...] = ("--upgrade",)) -> Fix:
    """Return the install of a package within transformers' range; `over` are the options for one that is installed."""
    name = DISTRIBUTION_OF.get(module, module.replace("_", "-"))
    transformers = need(snapshot.package("transformers"), "transformers")
    required = next(requirements.applicable_requirements(snapshot, transformers, name), None)
    title = f"a release of {name} that transformers {transformers.version} works with"
    specifier = str(required.specifier) if required else ""
    if name == "kernels":  # an extra's requirement, which METADATA names only for that extra
        specifier = entry_for_version(COMPATIBLE_KERNELS, Version(transformers.version)) or ""
    requirement = name + specifier
    options = over if snapshot.lists(name) else ()
    return install.install_packages(snapshot, requirement, options=options, title=title)


RULE = Rule("ATN154", "error", check)
