"""Fixes that install a torch that this machine's driver can run."""

from packaging.version import InvalidVersion, Version

from attncheck.core.findings import Fix
from attncheck.core.snapshot import Absent, Distribution, Known, Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import cuda
from attncheck.doctor.knowledge.cuda import MINIMUM_DRIVER
from attncheck.doctor.knowledge.torch_builds import CUDA_TAGS_BY_TORCH, INDEX_URL
from attncheck.doctor.queries import driver_version, known_capabilities, parse_cuda_version, requirements

TRITON_DISTRIBUTIONS = (
    "triton",
    "pytorch-triton",
    "triton-rocm",
    "pytorch-triton-rocm",
    "triton-windows",
    "pytorch-triton-xpu",
)


def install_torch(snapshot: Snapshot, title: str = "") -> Fix:
    """Return the command that installs a torch that the driver supports and that no installed package forbids.

    Without an NVIDIA driver, the installer's own index decides.
    """
    specifier = _torch_specifier(snapshot)
    requirement = "torch" + specifier
    index = _index_options(snapshot, specifier.removeprefix("==") if specifier.startswith("==") else "")
    return install.install_packages(snapshot, requirement, options=index, title=title or f"install {requirement}")


def install_cuda_torch(snapshot: Snapshot) -> Fix:
    """Return the command that replaces a torch without CUDA by the same release built for this driver's CUDA."""
    installed = snapshot.version("torch")
    release = installed.value.public if isinstance(installed, Known) else ""
    index = _index_options(snapshot, release)
    if not index or not release:
        return install_torch(snapshot, title="install a torch with CUDA")
    local = index[-1].rpartition("/")[2]  # without the local part the installer sees no difference
    return install.install_packages(
        snapshot, f"torch=={release}+{local}", options=index, title="install this torch with CUDA"
    )


def _torch_specifier(snapshot: Snapshot) -> str:
    """Return the version of torch that other distributions require: a pinned one if any, else all ranges."""
    specifiers = sorted({str(specifier) for _, specifier in requirements.version_constraints(snapshot, "torch")})
    return next((text for text in specifiers if text.startswith("==") and "," not in text), ",".join(specifiers))


def _index_options(snapshot: Snapshot, release: str) -> tuple[str, ...]:
    """Return the option that names PyTorch's index for the newest CUDA that the driver supports."""
    for tag in _cuda_tags(release):
        major, minor = int(tag[2:4]), int(tag[4:])
        if _driver_supports(snapshot, major) and _cuda_supports_gpus(snapshot, major, minor):
            return ("--index-url", f"{INDEX_URL}/{tag}")
    return ()


def _cuda_tags(release: str) -> tuple[str, ...]:
    minor = ".".join(release.split(".")[:2])
    return CUDA_TAGS_BY_TORCH.get(minor, CUDA_TAGS_BY_TORCH[""])


def _driver_supports(snapshot: Snapshot, cuda_major: int) -> bool:
    minimum = MINIMUM_DRIVER.get(cuda_major)
    if minimum is None or not isinstance(snapshot.driver, Known):
        return False
    try:
        return Version(snapshot.driver.value.version) >= Version(minimum)
    except InvalidVersion:
        return False


def _cuda_supports_gpus(snapshot: Snapshot, major: int, minor: int) -> bool:
    """Return whether torch's builds for this CUDA support every GPU: Blackwell needs 12.8, Volta CUDA before 13."""
    capabilities = [
        device.compute_capability.value
        for device in snapshot.visible_devices()
        if isinstance(device.compute_capability, Known)
    ]
    if any(capability >= (10, 0) for capability in capabilities) and (major, minor) < (12, 8):
        return False
    return major < 13 or all(capability >= (7, 5) for capability in capabilities)


def reinstall_torch(snapshot: Snapshot) -> Fix:
    """Return the command that reinstalls the same release of torch, with the libraries it depends on."""
    installed = snapshot.version("torch")
    if not isinstance(installed, Known):
        return install_torch(snapshot)
    local = installed.value.local or ""
    index = ("--index-url", f"{INDEX_URL}/{local}") if local[:2] in ("cu", "cp", "ro") else ()
    return install.install_packages(
        snapshot, f"torch=={installed.value}", options=("--force-reinstall", *index), title="reinstall torch"
    )


def required_triton(snapshot: Snapshot) -> str:
    """Return the triton that torch requires here ("triton==3.6.0"), or "" if it requires none."""
    torch = snapshot.package("torch")
    if not isinstance(torch, Known):
        return ""
    triton = next(requirements.applicable_requirements(snapshot, torch.value, *TRITON_DISTRIBUTIONS), None)
    return f"{triton.name}{triton.specifier}" if triton else ""


def reinstall_from_own_index(snapshot: Snapshot, distribution: Distribution) -> Fix:
    """Return the command that reinstalls one distribution; torch comes from the index it was built for."""
    if distribution.name == "torch":
        return reinstall_torch(snapshot)
    return install.reinstall_distribution(snapshot, distribution)


def install_matching_torch_build(snapshot: Snapshot, *, other_than: tuple[int, int] | None = None) -> Fix | None:
    """Return the install of the same torch built for this driver and these GPUs; None if no such build is known.

    `other_than` is the CUDA version of the present build: installing that one again would change nothing.
    """
    version = snapshot.version("torch")
    if not isinstance(version, Known) or not driver_version(snapshot):
        return None
    driver_cuda = snapshot.driver.value.cuda if isinstance(snapshot.driver, Known) else Absent()
    build = cuda.choose_torch_build(
        (version.value.major, version.value.minor),
        cuda.newest_cuda_major(driver_version(snapshot)),
        parse_cuda_version(driver_cuda.value) if isinstance(driver_cuda, Known) else None,
        tuple(capability for _, capability in known_capabilities(snapshot.visible_devices())),
    )
    if build is None or build == other_than:
        return None
    tag = f"cu{build[0]}{build[1]}"
    pinned = [f"torch=={version.value.base_version}+{tag}", *_companion_requirements(snapshot, version.value, tag)]
    return install.install_packages(
        snapshot,
        *pinned,
        options=("--index-url", f"https://download.pytorch.org/whl/{tag}"),
        title=f"install torch {version.value.base_version} built for CUDA {build[0]}.{build[1]}"
        + _name_followers(snapshot, build[0]),
    )


def _name_followers(snapshot: Snapshot, cuda_major: int) -> str:
    """Return the end of a title that names the packages built for another CUDA, which must be reinstalled too."""
    runtime = f"libcudart.so.{cuda_major}"
    followers = {
        binary.distribution
        for binary in snapshot.binaries
        if binary.distribution != "torch"
        and any(name.startswith("libcudart.so.") and not name.startswith(runtime) for name in binary.needed)
    }
    return f"; then reinstall the packages built for the old one: {', '.join(sorted(followers))}" if followers else ""


def choose_companion_version(name: str, torch: Version) -> str:
    """Return the release of torchvision or torchaudio that was made for `torch`; "" if unknown."""
    if torch.release < (2, 1):
        return ""
    if name == "torchvision":
        return f"0.{torch.minor + 15}.{torch.micro}"  # torch 2.8.0 has 0.23.0, 2.13.0 has 0.28.0
    return torch.base_version if name == "torchaudio" and torch.release < (2, 11) else ""


def install_companion(snapshot: Snapshot, name: str, torch: Version) -> Fix:
    """Return the install of the torchvision, torchaudio or xformers made for `torch`, from the index torch came from.

    The same release built for another torch (for CUDA next to a torch for CPUs) is replaced.
    """
    local = torch.local or ""
    index = ("--index-url", f"{INDEX_URL}/{local}") if local.startswith(("cu", "cpu", "rocm")) else ()
    version = choose_companion_version(name, torch)
    if not version:
        title = f"let the installer choose a {name} for this torch"
        return install.install_packages(snapshot, name, f"torch=={torch}", options=("--upgrade", *index), title=title)
    installed = snapshot.version(name)
    is_same = isinstance(installed, Known) and installed.value.public == version
    over = ("--force-reinstall",) if is_same else ()
    return install.install_packages(snapshot, f"{name}=={version}", options=(*over, "--no-deps", *index))


def _companion_requirements(snapshot: Snapshot, torch: Version, tag: str) -> list[str]:
    """Return the requirements of torch's compiled companions, such as torchvision, in the CUDA build `tag`."""
    companions = []
    for name in ("torchvision", "torchaudio"):
        package = snapshot.package(name)
        if isinstance(package, Known):
            try:
                release = choose_companion_version(name, torch) or Version(package.value.version).base_version
                companions.append(f"{name}=={release}+{tag}")
            except InvalidVersion:
                continue
    return companions
