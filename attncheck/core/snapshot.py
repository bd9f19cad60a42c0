"""The facts that probes collected about one environment: plain data that can be shared and judged elsewhere.

Every record here is written by `attncheck.doctor.probes` and read by `attncheck.doctor.rules`. Host name, user name,
home path and credentials in URLs are already removed when strings arrive (see
`attncheck.doctor.probes.payload.privacy`). Tokens and passwords are masked when a snapshot is shown
(`core.io.outgoing`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from packaging.version import InvalidVersion, Version

from attncheck.core.devices import Device, Driver, Link, Topology
from attncheck.core.environment import (
    Binary,
    BuildTools,
    Clash,
    Distribution,
    ExtensionBuild,
    Host,
    Hub,
    ImportOutcome,
    Interfaces,
    PackageGaps,
    RuntimeLibrary,
    Torch,
)
from attncheck.core.experiments import Experiments
from attncheck.core.facts import Absent, Fact, Known, MissingFact, Unreadable, need, value_or
from attncheck.core.job import Job
from attncheck.core.links import UnresolvedName
from attncheck.core.model import Model

__all__ = [
    "Absent",
    "Binary",
    "BuildTools",
    "Device",
    "Distribution",
    "Driver",
    "Fact",
    "Host",
    "Hub",
    "ImportOutcome",
    "Known",
    "Link",
    "MissingFact",
    "PackageGaps",
    "RuntimeLibrary",
    "Topology",
    "Torch",
    "Unreadable",
    "need",
    "value_or",
]


SCHEMA_VERSION = 1
NOT_ASKED = "this lane was not requested"


@lru_cache(1024)
def normalise_name(name: str) -> str:
    """Return the name of a distribution as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Snapshot:
    """Everything that the probes collected about one environment."""

    attncheck: str  # version that collected it
    taken: str  # UTC date, "2026-11-21"
    host: Host
    build_tools: BuildTools
    distributions: tuple[Distribution, ...]
    clashes: tuple[Clash, ...]
    shadows: tuple[str, ...]  # watched import names found outside every distribution: "flash_attn at ./flash_attn"
    binaries: tuple[Binary, ...]
    torch: Fact[Torch]
    imports: Fact[tuple[ImportOutcome, ...]]  # Absent if the import lane did not run
    interfaces: Fact[Interfaces]
    driver: Fact[Driver]
    devices: Fact[tuple[Device, ...]]  # Absent: this machine has no GPU
    topology: Fact[Topology]
    model: Fact[Model]
    hub: Hub
    environ: Mapping[str, str]  # variables of the allow-list; with a launch, those of its job
    job: Fact[Job] = Absent("no launch was given")
    problems: tuple[str, ...] = ()  # warnings of a probe
    lost: tuple[str, ...] = ()  # what the probe could not do; the absence of findings there proves nothing
    environ_gap: str = ""  # why a variable that `environ` lacks may be set anyway; "": it is not
    # Names that packages or a launch's scripts use and that no longer exist.
    links: Fact[tuple[UnresolvedName, ...]] = Absent(NOT_ASKED)
    runtime_libraries: tuple[RuntimeLibrary, ...] = ()  # empty: not searched for
    builds: tuple[ExtensionBuild, ...] = ()  # if packages record how they were built
    experiments: Fact[Experiments] = Absent(NOT_ASKED)  # with the installed trainers: doctor --deep
    gaps: PackageGaps = PackageGaps()  # what is not known about the packages if no environment was read
    schema_version: int = SCHEMA_VERSION

    def package(self, name: str) -> Fact[Distribution]:
        """Return the installed distribution called `name` (any spelling).

        If there are several, prefer the one with the version that the imported module states, or else the first on
        sys.path.
        """
        normalised = normalise_name(name)
        candidates = self._distributions_by_name.get(normalised, [])
        if len(candidates) > 1:
            candidates = candidates.copy()
            outcome = self.imported(normalised.replace("-", "_"))
            version = outcome.value.version if isinstance(outcome, Known) else ""
            candidates.sort(key=lambda distribution: distribution.version != version)
        if candidates:
            return Known(candidates[0])
        if self.gaps.reason and normalised not in self.gaps.not_installed:
            return Unreadable(f"{normalised}: {self.gaps.reason}")
        return Absent(f"{normalised} is not installed")

    @cached_property
    def _distributions_by_name(self) -> dict[str, list[Distribution]]:
        by_name: dict[str, list[Distribution]] = {}
        for distribution in self.distributions:
            by_name.setdefault(distribution.name, []).append(distribution)
        return by_name

    def has(self, *names: str) -> bool:
        """Return whether any of the distributions `names` is installed. Raises `MissingFact` if it is not known."""
        if self.lists(*names):
            return True
        if any(isinstance(self.package(name), Unreadable) for name in names):
            raise MissingFact(f"it is not known which other packages are installed: {self.gaps.reason}")
        return False

    def lists(self, *names: str) -> bool:
        """Return whether any of the distributions `names` is listed; for a target, False proves nothing."""
        return any(isinstance(self.package(name), Known) for name in names)

    @property
    def measurements(self) -> Experiments:
        """What `doctor --deep` measured; empty if nothing was."""
        return self.experiments.value if isinstance(self.experiments, Known) else Experiments()

    def version(self, name: str) -> Fact[Version]:
        """Return the version of the distribution `name`; for torch with its local part ("+cu130")."""
        package = self.package(name)
        if not isinstance(package, Known):
            return package
        text = package.value.version
        if package.value.name == "torch" and isinstance(self.torch, Known):
            text = self.torch.value.version  # torch/version.py keeps the +cuXYZ that some installs drop from METADATA
        if not text and package.value.allowed:
            return Unreadable(f"the version of {package.value.name} is unknown: {package.value.allowed}")
        try:
            return Known(Version(text))
        except InvalidVersion:
            return Unreadable(f"{package.value.name} calls itself version {text!r}")

    def imported(self, module: str) -> Fact[ImportOutcome]:
        """Return the outcome of importing `module`."""
        if not isinstance(self.imports, Known):
            return self.imports
        for outcome in self.imports.value:
            if outcome.module == module:
                return Known(outcome)
        return Absent(f"importing {module} was not tried")

    def binary(self, module: str) -> Fact[Binary]:
        """Return the extension that is imported as `module`."""
        for binary in self.binaries:
            if binary.module == module:
                return Known(binary)
        return Absent(f"no extension module {module}")

    def build(self, distribution: str) -> Fact[ExtensionBuild]:
        """Return how the compiled package `distribution` was built."""
        for build in self.builds:
            if build.distribution == distribution:
                return Known(build)
        return Absent(f"{distribution} does not record how it was built")

    def env(self, name: str) -> Fact[str]:
        """Return an environment variable of the allow-list."""
        if name in self.environ:
            return Known(self.environ[name])
        return Unreadable(f"{name}: {self.environ_gap}") if self.environ_gap else Absent(f"{name} is not set")

    def sets(self, name: str) -> bool:
        """Return whether the environment sets `name`. Raises `MissingFact` if that is not known."""
        if isinstance(self.env(name), Unreadable):
            raise MissingFact(f"it is not known whether {name} is set: {self.environ_gap}")
        return name in self.environ

    def visible_devices(self) -> tuple[Device, ...]:
        """Return the GPUs visible to a job here; empty if there is none or none can be read."""
        if isinstance(self.devices, Known):
            return tuple(device for device in self.devices.value if device.visible)
        return ()
