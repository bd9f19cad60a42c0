"""Recorded snapshots and small patches over them, for rules' tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attncheck.core import codec
from attncheck.core.devices import Device
from attncheck.core.environment import Binary, Distribution, ImportOutcome, Interfaces
from attncheck.core.facts import Absent as Absent
from attncheck.core.facts import Known as Known
from attncheck.core.facts import Unreadable as Unreadable
from attncheck.core.job import Job
from attncheck.core.launch import SourceLocation
from attncheck.core.links import UnresolvedName
from attncheck.core.model import Model
from attncheck.core.plan import Plan
from attncheck.core.snapshot import Snapshot

FOLDER = Path(__file__).parent / "data" / "snapshots"


@cache
def load_snapshot(name: str) -> Snapshot:
    """Return the snapshot recorded as tests/data/snapshots/NAME.json."""
    return codec.loads(Snapshot, (FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def h200() -> Snapshot:
    """Return one H200: torch 2.11+cu130, flash-attn 2.8.3, ring-flash-attn 0.1.8, transformers 5.17."""
    return load_snapshot("h200")


def h200x2() -> Snapshot:
    """Return two H200s joined by NVLink, with the same packages."""
    return load_snapshot("h200x2")


def laptop() -> Snapshot:
    """Return a machine without a GPU: torch 2.13+cpu, transformers 5.17, nothing else."""
    return load_snapshot("laptop")


def with_package(snapshot: Snapshot, name: str, version: str, **fields: Any) -> Snapshot:
    """Install (or replace) the distribution `name`."""
    others = tuple(d for d in snapshot.distributions if d.name != name)
    location = next((d.location for d in snapshot.distributions), "~/env/lib/python3.12/site-packages")
    new = Distribution(name=name, version=version, location=fields.pop("location", location), **fields)
    return replace(snapshot, distributions=(*others, new))


def without_packages(snapshot: Snapshot, *names: str) -> Snapshot:
    """Remove distributions, with their binaries."""
    return replace(
        snapshot,
        distributions=tuple(d for d in snapshot.distributions if d.name not in names),
        binaries=tuple(b for b in snapshot.binaries if b.distribution not in names),
    )


def with_env(snapshot: Snapshot, **variables: str) -> Snapshot:
    """Set environment variables."""
    return replace(snapshot, environ={**snapshot.environ, **variables})


def with_host(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Change fields of the host."""
    return replace(snapshot, host=replace(snapshot.host, **fields))


def with_build_tools(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Change fields of the build tools."""
    return replace(snapshot, build_tools=replace(snapshot.build_tools, **fields))


def with_torch(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Change fields of torch (its version in the distribution too)."""
    assert isinstance(snapshot.torch, Known)
    updated = replace(snapshot, torch=Known(replace(snapshot.torch.value, **fields)))
    return with_package(updated, "torch", fields["version"]) if "version" in fields else updated


def with_import(snapshot: Snapshot, module: str, outcome: Any = "ok", **fields: Any) -> Snapshot:
    """Set how importing `module` ended."""
    before = snapshot.imports.value if isinstance(snapshot.imports, Known) else ()
    new = ImportOutcome(module=module, outcome=outcome, seconds=fields.pop("seconds", 1.0), **fields)
    return replace(snapshot, imports=Known((*(o for o in before if o.module != module), new)))


def with_interfaces(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Change fields of the interfaces; mappings are merged into what is there."""
    before = snapshot.interfaces.value if isinstance(snapshot.interfaces, Known) else Interfaces()
    for name, value in fields.items():
        if isinstance(value, Mapping):
            fields[name] = {**getattr(before, name), **value}
    return replace(snapshot, interfaces=Known(replace(before, **fields)))


def with_links(snapshot: Snapshot, *links: UnresolvedName) -> Snapshot:
    """Record what the linker read to be gone: nothing, without `links`; a model's are its own."""
    of_model = tuple(link for link in links if link.consumer == "model")
    packages = tuple(link for link in links if link.consumer != "model")
    linked = replace(snapshot, links=Known(packages))
    return with_model(linked, links=Known(of_model)) if isinstance(snapshot.model, Known) else linked


def make_link(**fields: Any) -> UnresolvedName:
    """Return a name that verl's SFT trainer takes from transformers at import, unless `fields` say otherwise."""
    fields.setdefault("consumer", "verl")
    fields.setdefault("module", "verl.models.transformers.qwen2_vl")
    fields.setdefault("path", "verl/models/transformers/qwen2_vl.py")
    fields.setdefault("line", 24)
    fields.setdefault("provider", "transformers")
    fields.setdefault("source", "transformers.models.qwen2_vl.modeling_qwen2_vl")
    fields.setdefault("name", "Qwen2VLCausalLMOutputWithPast")
    return UnresolvedName(**fields)


def with_binary(snapshot: Snapshot, module: str, **fields: Any) -> Snapshot:
    """Change (or add) the extension that is imported as `module`."""
    before = next((b for b in snapshot.binaries if b.module == module), None)
    before = before or Binary(
        path=f"{module}.so", distribution=fields.get("distribution", module), module=module, size_bytes=1
    )
    others = tuple(b for b in snapshot.binaries if b.module != module)
    return replace(snapshot, binaries=(*others, replace(before, **fields)))


def with_driver(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Change fields of the driver."""
    assert isinstance(snapshot.driver, Known)
    return replace(snapshot, driver=Known(replace(snapshot.driver.value, **fields)))


def with_gpus(snapshot: Snapshot, *capabilities: tuple[int, int], **fields: Any) -> Snapshot:
    """Put GPUs of these compute capabilities into the machine (none: no GPU)."""
    if not capabilities:
        return replace(snapshot, devices=Absent("no GPU"), driver=Absent("no driver"), topology=Absent("no GPU"))
    gib = 1 << 30
    base = Device(
        0, "NVIDIA GPU", Absent(), Known(80 * gib), Known(79 * gib), Known(False), Known(True), True, Known("ok")
    )
    devices = tuple(
        replace(base, index=index, compute_capability=Known(capability), **fields)
        for index, capability in enumerate(capabilities)
    )
    return replace(snapshot, devices=Known(devices))


def hide_gpus(snapshot: Snapshot, *indices: int) -> Snapshot:
    """Hide GPUs from jobs, as CUDA_VISIBLE_DEVICES does."""
    assert isinstance(snapshot.devices, Known)
    devices = (replace(device, visible=device.index not in indices) for device in snapshot.devices.value)
    return replace(snapshot, devices=Known(tuple(devices)))


def with_model(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Request a model: a Qwen2.5-7B-like one with the given fields changed."""
    before = snapshot.model.value if isinstance(snapshot.model, Known) else QWEN2_MODEL
    return replace(snapshot, model=Known(replace(before, **fields)))


def with_job(snapshot: Snapshot, plan: Mapping[str, Any] = MappingProxyType({}), **fields: Any) -> Snapshot:
    """Give a launch: OpenRLHF's SFT on one H200 with ring-flash-attn's scheme, with the given fields changed."""
    before = snapshot.job.value if isinstance(snapshot.job, Known) else OPENRLHF_JOB
    return replace(snapshot, job=Known(replace(before, plan=replace(before.plan, **plan), **fields)))


def with_trl_job(snapshot: Snapshot, implementation: str, imports: tuple[str, ...] = ()) -> Snapshot:
    """Give a launch of TRL's SFT with this attn_implementation, which imports these modules whatever it requires."""
    plan = {"attn_implementation": implementation}
    return with_job(snapshot, plan, framework="trl", trainer="sft", imports=imports)


OPENRLHF_JOB = Job(
    framework="openrlhf",
    version="0.11.2",
    trainer="sft",
    plan=Plan(attn_implementation="flash_attention_2", max_length=2048),
    model="Qwen/Qwen2.5-7B",
    location=SourceLocation("run.sh", 3),
    world_size=Known(1),
    gpus=Known(1),
    scheme="llama3",
    hooked=("flash_attention_2",),
    packs_with=("flash_attention_2",),
    imports=("flash_attn",),
    locations={"attn_implementation": SourceLocation("run.sh", 7, 5), "ring_size": SourceLocation("run.sh", 8, 5)},
)

QWEN2_MODEL = Model(
    source="Qwen/Qwen2.5-7B",
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM",),
    dtype=Known("bfloat16"),
    num_layers=Known(28),
    num_heads=Known(28),
    num_kv_heads=Known(4),
    head_dim=Known(128),
    v_head_dim=Known(128),
    head_dims=(128,),
    max_position_embeddings=Known(131072),
    layer_types=("full_attention",) * 28,
    sliding_window=Absent("use_sliding_window is false"),
    attention_chunk_size=Absent(),
    softcap=Absent(),
    attention_dropout=Known(0.0),
    sinks=False,
    alibi=False,
    mrope=False,
    causal=True,
    use_cache=Known(True),
    output_attentions=False,
    attn_implementation=Absent(),
    towers=(),
    remote_code=False,
    remote_imports=(),
    tokenizer=Absent(),
    accepts=Known({"eager": "", "sdpa": "", "flash_attention_2": "", "flex_attention": ""}),
)
