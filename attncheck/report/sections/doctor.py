"""Doctor's overview: one line for each component of the environment, and whether a finding is about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from attncheck.core.findings import Finding
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.snapshot import NOT_ASKED, Known, Snapshot, value_or
from attncheck.doctor.knowledge import frameworks
from attncheck.report.sections import Block, Items, Report, SectionView

Mark = Literal["ok", "-", "note", "warning", "error"]

# Packages that get their own line if they are installed.
_PACKAGES = (
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "ring-flash-attn",
    "liger-kernel",
    "transformers",
    *frameworks.FRAMEWORK_NAMES,
)
FAILED_IMPORT = "importing it "
NONE_PREFIX = "none: "
_MODULES = {"ring-flash-attn": "ring_flash_attn", "liger-kernel": "liger_kernel.transformers"}
_PARTS = {"transformers": ("transformers.modeling_flash_attention_utils", "transformers.modeling_utils")}


@dataclass(frozen=True)
class OverviewItem:
    """One component, with the most severe finding about it ("ok": no finding; "-": not installed)."""

    mark: Mark
    title: str
    text: str


def blocks(report: Report, section: DoctorSection) -> Iterator[Block]:
    """Yield the overview."""
    items = make_overview(report)
    yield Items(tuple((item.mark, item.title, item.text) for item in items), ("state", "part", "details"))


def make_overview(report: Report) -> tuple[OverviewItem, ...]:
    """Return an item for each package, device and model in the snapshot."""
    rows = list(_describe_snapshot(report.snapshot))
    titles = frozenset(title for title, _ in rows)
    return tuple(
        OverviewItem(_worst_mark(report, title, text, titles), title, text.removeprefix(NONE_PREFIX))
        for title, text in rows
    )


def _worst_mark(report: Report, title: str, text: str, titles: frozenset[str]) -> Mark:
    findings = [finding for finding in report.findings if _is_about(finding, title, titles)]
    marks: tuple[Mark, ...] = ("error", "warning", "note")
    without_findings: Mark = "note" if FAILED_IMPORT in text else "-" if text.startswith(NONE_PREFIX) else "ok"
    return next((mark for mark in marks if any(f.severity == mark for f in findings)), without_findings)


def _is_about(finding: Finding, title: str, titles: frozenset[str]) -> bool:
    """Return whether a finding belongs to a row: its subject names the row, or names none and its rule does.

    A finding with a location is about a launch, even if its subject is the framework.
    """
    subject = finding.subject.lower()
    if finding.locations:
        return False
    if subject.split(" ")[0] in titles:
        return subject.split(" ")[0] == title
    return subject.startswith(title) or finding.name.startswith(title + "-")


def _describe_snapshot(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    host = snapshot.host
    python = f"{host.python_version} at {host.executable}"
    yield "python", " · ".join(filter(None, (python, host.selection.reason, *host.selection.passed_over)))
    yield from _describe_torch(snapshot)
    for name in _PACKAGES:
        package = snapshot.package(name)
        if isinstance(package, Known):
            yield name, " · ".join([package.value.version or "version unknown", *_describe_package(snapshot, name)])
    yield from _describe_gpus(snapshot)
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value
        yield "model", f"{model.source} · {model.model_type} · {_describe_heads(snapshot)}"


def _describe_torch(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    if not isinstance(snapshot.torch, Known):
        yield "torch", NONE_PREFIX + snapshot.torch.reason
        return
    torch = snapshot.torch.value
    parts = [torch.version]
    for label, fact in (("CUDA", torch.cuda), ("cuDNN", torch.cudnn), ("NCCL", torch.nccl)):
        if isinstance(fact, Known):
            parts.append(f"{label} {fact.value}")
    yield "torch", " · ".join(parts)


def _describe_package(snapshot: Snapshot, name: str) -> Iterator[str]:
    binaries = [binary for binary in snapshot.binaries if binary.distribution == name and binary.module]
    architectures = sorted({arch for binary in binaries for arch in (*binary.sass, *binary.ptx)})
    if architectures:
        yield "built for " + ", ".join(architectures)
    if binaries and not any(binary.missing_symbols for binary in binaries):
        yield "ABI matches torch"
    module = _MODULES.get(name, name.replace("-", "_"))
    modules = (module, *_PARTS.get(name, ()))
    outcomes = [fact.value for fact in map(snapshot.imported, modules) if isinstance(fact, Known)]
    failed = next((outcome for outcome in outcomes if outcome.outcome in ("raised", "died", "hung")), None)
    if failed is not None:
        yield FAILED_IMPORT + (f"({failed.module}) " if failed.module != module else "") + failed.outcome
    elif outcomes:
        yield "imports" if outcomes[0].outcome == "ok" else FAILED_IMPORT + outcomes[0].outcome


def _describe_gpus(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    if isinstance(snapshot.driver, Known):
        driver = snapshot.driver.value
        cuda = f" · serves CUDA {driver.cuda.value}" if isinstance(driver.cuda, Known) else ""
        yield "driver", driver.version + cuda
    if not isinstance(snapshot.devices, Known):
        if snapshot.devices.reason != NOT_ASKED:
            yield "gpu", NONE_PREFIX + snapshot.devices.reason
        return
    for device in snapshot.devices.value:
        memory = value_or(device.memory_total_bytes, 0) / (1 << 30)
        hidden = "" if device.visible else " · hidden from jobs here"
        kernel = " · runs a kernel" if device.kernel == Known("ok") else ""
        yield f"cuda:{device.index}", f"{device.name} · {device.sm} · {memory:.0f} GiB{kernel}{hidden}"
    if isinstance(snapshot.topology, Known) and snapshot.topology.value.links:
        kinds = sorted({link.kind for link in snapshot.topology.value.links})
        yield "links", ", ".join(kinds)


def _describe_heads(snapshot: Snapshot) -> str:
    assert isinstance(snapshot.model, Known)
    model = snapshot.model.value
    shown = [
        f"{fact.value} {label}"
        for label, fact in (("heads", model.num_heads), ("kv heads", model.num_kv_heads))
        if isinstance(fact, Known)
    ]
    return ", ".join([*shown, f"head_dim {value_or(model.head_dim, 0) or '?'}"])


VIEW = SectionView("Environment", blocks)
