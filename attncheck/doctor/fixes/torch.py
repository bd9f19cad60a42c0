"""How to get a torch that this machine's driver can run."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from attncheck.core.environment import Distribution
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Fix
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import cuda
from attncheck.doctor.knowledge.cuda import MINIMUM_DRIVER
from attncheck.doctor.knowledge.torch_builds import BUILDS, INDEX
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.gpus import _pair, capabilities, driver_version

TRITONS = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "triton-windows", "pytorch-triton-xpu")


def install_torch(snapshot: Snapshot, title: str = "") -> Fix:
    """Return the command that installs a torch that the driver serves and that nothing installed here forbids.

    Without an NVIDIA driver the installer's own index decides.
    """
    wanted = _wanted(snapshot)
    requirement = "torch" + wanted
    index = _index(snapshot, wanted.removeprefix("==") if wanted.startswith("==") else "")
    return install.install(snapshot, requirement, options=index, title=title or f"install {requirement}")


def cuda_torch(snapshot: Snapshot) -> Fix:
    """Return the command that replaces a torch without CUDA by the same release built for this driver's CUDA."""
    found = snapshot.version("torch")
    release = found.value.public if isinstance(found, Known) else ""
    index = _index(snapshot, release)
    if not index or not release:
        return install_torch(snapshot, title="install a torch with CUDA")
    local = index[-1].rpartition("/")[2]  # the local part is what makes the installer see a difference
    return install.install(snapshot, f"torch=={release}+{local}", options=index, title="install this torch with CUDA")


def _wanted(snapshot: Snapshot) -> str:
    """Return what the other distributions ask of torch: one exact version where one names it, else all their ranges."""
    asked = sorted({str(specifier) for _, specifier in requirements.demands(snapshot, "torch")})
    return next((text for text in asked if text.startswith("==") and "," not in text), ",".join(asked))


def _index(snapshot: Snapshot, release: str) -> tuple[str, ...]:
    """Return the option that names PyTorch's index for the newest CUDA that the driver serves."""
    for tag in _builds(release):
        major, minor = int(tag[2:4]), int(tag[4:])
        if _driver_serves(snapshot, major) and _generation_fits(snapshot, major, minor):
            return ("--index-url", f"{INDEX}/{tag}")
    return ()


def _builds(release: str) -> tuple[str, ...]:
    minor = ".".join(release.split(".")[:2])
    return BUILDS.get(minor, BUILDS[""])


def _driver_serves(snapshot: Snapshot, major: int) -> bool:
    minimum = MINIMUM_DRIVER.get(major)
    if minimum is None or not isinstance(snapshot.driver, Known):
        return False
    try:
        return Version(snapshot.driver.value.version) >= Version(minimum)
    except InvalidVersion:
        return False


def _generation_fits(snapshot: Snapshot, major: int, minor: int) -> bool:
    """Say whether torch's builds for this CUDA hold code for every GPU: Blackwell from 12.8, Volta before 13."""
    capabilities = [
        device.compute_capability.value
        for device in snapshot.visible_devices()
        if isinstance(device.compute_capability, Known)
    ]
    if any(capability >= (10, 0) for capability in capabilities) and (major, minor) < (12, 8):
        return False
    return major < 13 or all(capability >= (7, 5) for capability in capabilities)


def reinstall_torch(snapshot: Snapshot) -> Fix:
    """Return the command that lays down the installed release of torch again, with the libraries it depends on."""
    found = snapshot.version("torch")
    if not isinstance(found, Known):
        return install_torch(snapshot)
    local = found.value.local or ""
    index = ("--index-url", f"{INDEX}/{local}") if local[:2] in ("cu", "cp", "ro") else ()
    return install.install(
        snapshot, f"torch=={found.value}", options=("--force-reinstall", *index), title="lay torch down again"
    )


def triton_of_torch(snapshot: Snapshot) -> str:
    """Return the triton that torch requires here ("triton==3.6.0"), or ""."""
    torch = snapshot.package("torch")
    found = list(requirements.demands_of(snapshot, torch.value, *TRITONS)) if isinstance(torch, Known) else []
    return f"{found[0].name}{found[0].specifier}" if found else ""


def reinstall(snapshot: Snapshot, distribution: Distribution) -> Fix:
    """Return the command that lays one distribution down again; torch comes from the index it was built for."""
    return reinstall_torch(snapshot) if distribution.name == "torch" else install.reinstall(snapshot, distribution)


def torch_build(snapshot: Snapshot, *, but: tuple[int, int] | None = None) -> Fix | None:
    """Return the install of the same torch built for this driver and these GPUs; None where none is known.

    `but` is the build that would be no change.
    """
    version = snapshot.version("torch")
    if not isinstance(version, Known) or not driver_version(snapshot):
        return None
    driver = snapshot.driver.value.cuda if isinstance(snapshot.driver, Known) else Absent()
    build = cuda.published(
        (version.value.major, version.value.minor),
        cuda.major_served(driver_version(snapshot)),
        _pair(driver.value) if isinstance(driver, Known) else None,
        tuple(capability for _, capability in capabilities(snapshot.visible_devices())),
    )
    if build is None or build == but:
        return None
    tag = f"cu{build[0]}{build[1]}"
    wanted = [f"torch=={version.value.base_version}+{tag}", *_companions(snapshot, tag)]
    return install.install(
        snapshot,
        *wanted,
        options=("--index-url", f"https://download.pytorch.org/whl/{tag}"),
        title=f"install torch {version.value.base_version} built for CUDA {build[0]}.{build[1]}",
    )


def _companions(snapshot: Snapshot, tag: str) -> list[str]:
    """Return the packages that are compiled against torch and published beside it, in the same build."""
    found = []
    for name in ("torchvision", "torchaudio"):
        package = snapshot.package(name)
        if isinstance(package, Known):
            try:
                found.append(f"{name}=={Version(package.value.version).base_version}+{tag}")
            except InvalidVersion:
                continue
    return found
