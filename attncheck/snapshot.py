"""What was seen of one environment: plain data, shareable, judged elsewhere.

Every record here is written by `attncheck.probes` and read by `attncheck.rules`. Strings are already free of
host name, user name, home path and credentials when they arrive (see `attncheck.probes.payload.privacy`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packaging.version import InvalidVersion, Version

from attncheck.facts import Absent, Fact, Known, Unreadable

SCHEMA_VERSION = 1
NOT_ASKED = "this lane was not asked for"


@dataclass(frozen=True)
class Host:
    """The interpreter that was examined and the machine under it."""

    python_version: str  # "3.11.7"
    python_implementation: str  # "cpython"
    python_abi: str  # the wheel tag: "cp311", "cp313t"
    executable: str
    prefix: str
    virtual_environment: bool
    conda: bool
    platform: str  # sys.platform: "linux", "darwin", "win32"
    machine: str  # "x86_64", "aarch64"
    glibc: Fact[str]  # "2.36"
    kernel: str
    cpu_count: int  # what this process may use: affinity and cgroup counted
    memory_total_bytes: Fact[int]  # the smaller of RAM and the cgroup's limit
    memory_available_bytes: Fact[int]
    shm_bytes: Fact[int]  # size of /dev/shm


@dataclass(frozen=True)
class BuildTools:
    """What a source build of flash-attn would find, and how packages are installed here."""

    nvcc: Fact[str]  # "12.8"
    cuda_home: Fact[str]
    ninja: Fact[str]  # its version, or "on PATH"
    gcc: Fact[str]  # of g++; some systems tell the major version only
    pip: Fact[str]  # version of pip inside the examined environment
    uv: Fact[str]  # path of uv
    pip_config: Mapping[str, str]  # settings that change what an install does, credentials removed
    externally_managed: bool  # PEP 668


@dataclass(frozen=True)
class Distribution:
    """One installed distribution (a `*.dist-info` or `*.egg-info`)."""

    name: str  # normalised (PEP 503)
    version: str  # "" where the metadata does not say
    location: str  # the site directory that holds it
    installer: str = ""  # "pip", "uv", "conda", …
    wheel_tags: tuple[str, ...] = ()
    direct_url: str = ""
    editable: bool = False
    requires: tuple[str, ...] = ()  # Requires-Dist as written
    requires_python: str = ""
    problem: str = ""  # "METADATA is missing", "not UTF-8", … : half removed or corrupt
    files_missing: tuple[str, ...] = ()  # in RECORD, not on disk (watched distributions only)
    files_altered: tuple[str, ...] = ()  # size or hash differs from RECORD (watched distributions only)


@dataclass(frozen=True)
class Clash:
    """One file that the RECORDs of several distributions claim."""

    path: str
    owners: tuple[str, ...]


@dataclass(frozen=True)
class Binary:
    """One extension module or shared library, read as an ELF file and never loaded."""

    path: str  # relative to its site directory
    distribution: str
    module: str  # import name, "" for a plain library
    size_bytes: int
    machine: str = ""  # "x86_64"
    needed: tuple[str, ...] = ()  # DT_NEEDED
    unresolved: tuple[
        str, ...
    ] = ()  # needed libraries found neither by RUNPATH, nor in torch/nvidia wheels, nor ldconfig
    glibc_required: str = ""  # highest GLIBC_x.y version it asks for
    torch_symbols: int = 0  # undefined c10/at/torch symbols it asks of libtorch
    missing_symbols: tuple[str, ...] = ()  # of those, the mangled names that the installed torch does not export
    sass: tuple[str, ...] = ()  # "sm_80", "sm_90", …
    ptx: tuple[str, ...] = ()  # "compute_90", …
    problem: str = ""  # "not an ELF file", "truncated", …


@dataclass(frozen=True)
class Torch:
    """torch: the first block read from its files, the second from inside a child that imported it."""

    version: str  # "2.11.0+cu130"
    cuda: Fact[str]  # "13.0"; Absent for a CPU or ROCm build
    hip: Fact[str]
    cxx11_abi: Fact[bool]

    arch_list: Fact[tuple[str, ...]] = Unreadable("torch was not imported")
    cudnn: Fact[str] = Unreadable("torch was not imported")  # "9.10.2"
    nccl: Fact[str] = Unreadable("torch was not imported")  # "2.27.3"
    cuda_available: Fact[bool] = Unreadable("torch was not imported")
    cuda_error: Fact[str] = Unreadable("torch was not imported")  # why CUDA did not start
    sdpa_switches: Fact[Mapping[str, bool]] = Unreadable("torch was not imported")  # "FLASH_ATTENTION": True, …


@dataclass(frozen=True)
class ImportOutcome:
    """How importing one module in its own child ended."""

    module: str
    outcome: Literal["ok", "raised", "died", "hung", "skipped"]
    seconds: float
    exception: str = ""  # type name
    message: str = ""
    frames: tuple[str, ...] = ()  # last frames, "file:line in function"
    signal: str = ""  # "SIGSEGV" where it died
    version: str = ""  # module.__version__


@dataclass(frozen=True)
class Interfaces:
    """What imported packages answer and offer: the seams that the training stack patches."""

    availability: Mapping[str, bool] = field(
        default_factory=dict
    )  # transformers' predicates: is_flash_attn_2_available
    symbols: Mapping[str, bool] = field(
        default_factory=dict
    )  # "transformers.utils:is_flash_attn_greater_or_equal_2_10"
    signatures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "module:function" -> parameter names
    unpad_input_arity: Fact[int] = Unreadable(
        "flash_attn was not imported"
    )  # values flash_attn.bert_padding.unpad_input returns
    liger_model_types: Fact[tuple[str, ...]] = Unreadable("liger_kernel was not imported")
    liger_missing_targets: Fact[tuple[str, ...]] = Unreadable(
        "liger_kernel was not imported"
    )  # "module:attribute" it would patch in vain
    attention_functions: Fact[tuple[str, ...]] = Unreadable("transformers was not imported")
    mask_functions: Fact[tuple[str, ...]] = Unreadable("transformers was not imported")
    kernel_fallbacks: Fact[Mapping[str, str]] = Unreadable(
        "transformers was not imported"
    )  # "flash_attention_2" -> Hub repository


@dataclass(frozen=True)
class Driver:
    """The NVIDIA kernel driver, as nvidia-smi or /proc tells it."""

    version: str  # "580.159.04"
    cuda: Fact[str]  # highest CUDA it serves, "13.0"
    fabric: Fact[str] = Absent()  # fabric manager's state on NVSwitch machines: "Completed", "In Progress", …


@dataclass(frozen=True)
class Device:
    """One GPU."""

    index: int
    name: str
    compute_capability: Fact[tuple[int, int]]
    memory_total_bytes: Fact[int]
    memory_free_bytes: Fact[int]
    mig: Fact[bool] = Unreadable()
    ecc: Fact[bool] = Unreadable()
    visible: bool = True  # to a process that honours CUDA_VISIBLE_DEVICES
    kernel: Fact[str] = Unreadable("no kernel was run")  # "ok", or the error of one tiny torch kernel

    @property
    def sm(self) -> str:
        """Return the GPU generation as text: "sm_90", or "sm_?" where it is not known."""
        if isinstance(self.compute_capability, Known):
            return "sm_{}{}".format(*self.compute_capability.value)
        return "sm_?"


@dataclass(frozen=True)
class Link:
    """How two GPUs are joined: "NV18" NVLink, "PIX"/"PXB"/"PHB"/"NODE"/"SYS" PCIe ever further apart."""

    first: int
    second: int
    kind: str
    peer_access: Fact[bool] = Unreadable("torch was not asked")


@dataclass(frozen=True)
class Topology:
    """The links among the GPUs and the NUMA node each hangs on (-1: not told)."""

    links: tuple[Link, ...]
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tokenizer:
    """What tokenizer_config.json says of padding."""

    padding_side: Fact[str]
    pad_token: Fact[str]
    eos_token: Fact[str]


@dataclass(frozen=True)
class Tower:
    """The attention of a vision or audio part of a model: bidirectional, with its own head size."""

    name: str  # the sub-config: "vision_config"
    num_heads: int
    head_dim: int


@dataclass(frozen=True)
class Model:
    """A model as its config.json and tokenizer_config.json describe it; no weights, no remote code."""

    source: str
    model_type: str
    architectures: tuple[str, ...]
    dtype: Fact[str]
    num_layers: Fact[int]
    num_heads: Fact[int]
    num_kv_heads: Fact[int]
    head_dim: Fact[int]  # of q and k, the largest over the layers
    v_head_dim: Fact[int]
    head_dims: tuple[int, ...]  # every distinct q/k head size over the layers
    max_position_embeddings: Fact[int]
    layer_types: tuple[str, ...]  # "full_attention", "sliding_attention", "linear_attention", "chunked_attention" …
    sliding_window: Fact[int]  # Absent unless some layer uses it
    attention_chunk_size: Fact[int]
    softcap: Fact[float]  # attn_logit_softcapping
    attention_dropout: Fact[float]
    sinks: bool
    alibi: bool
    mrope: bool  # positions of shape [3, batch, seqlen]
    causal: bool
    use_cache: Fact[bool]
    output_attentions: bool
    attn_implementation: Fact[str]  # as config.json asks
    towers: tuple[Tower, ...]
    remote_code: bool  # config.json names code of its own (auto_map)
    remote_imports: tuple[
        str, ...
    ]  # what that code imports, never run: "einops", "flash_attn.bert_padding:unpad_input"
    tokenizer: Fact[Tokenizer]
    accepts: Fact[Mapping[str, str]]  # attn_implementation -> "" accepted, or the installed transformers' refusal


@dataclass(frozen=True)
class Hub:
    """The Hugging Face cache, as far as kernels go."""

    offline: bool  # HF_HUB_OFFLINE and its siblings
    kernels: tuple[str, ...]  # cached kernel repositories: "kernels-community/flash-attn2"


@dataclass(frozen=True)
class Snapshot:
    """Everything the probes saw of one environment."""

    attncheck: str  # version that took it
    taken: str  # UTC date, "2026-11-21"
    host: Host
    build_tools: BuildTools
    distributions: tuple[Distribution, ...]
    clashes: tuple[Clash, ...]
    shadows: tuple[str, ...]  # watched import names found outside every distribution: "flash_attn at ./flash_attn"
    binaries: tuple[Binary, ...]
    torch: Fact[Torch]
    imports: Fact[tuple[ImportOutcome, ...]]  # Absent where the import lane was not asked for
    interfaces: Fact[Interfaces]
    driver: Fact[Driver]
    devices: Fact[tuple[Device, ...]]  # Absent: no GPU here
    topology: Fact[Topology]
    model: Fact[Model]
    hub: Hub
    environ: Mapping[str, str]  # by allow-list
    problems: tuple[str, ...] = ()  # what the probe itself could not do
    schema_version: int = SCHEMA_VERSION

    def package(self, name: str) -> Fact[Distribution]:
        """Return the installed distribution called `name` (any spelling), the first on sys.path."""
        wanted = re.sub(r"[-_.]+", "-", name).lower()
        for distribution in self.distributions:
            if distribution.name == wanted:
                return Known(distribution)
        return Absent(f"{wanted} is not installed")

    def has(self, *names: str) -> bool:
        """Say whether any of the distributions `names` is installed."""
        return any(isinstance(self.package(name), Known) for name in names)

    def version(self, name: str) -> Fact[Version]:
        """Return the version of the distribution `name`; for torch with its local part ("+cu130")."""
        found = self.package(name)
        if not isinstance(found, Known):
            return found
        text = found.value.version
        if found.value.name == "torch" and isinstance(self.torch, Known):
            text = self.torch.value.version  # torch/version.py keeps the +cuXYZ that some installs drop from METADATA
        try:
            return Known(Version(text))
        except InvalidVersion:
            return Unreadable(f"{found.value.name} calls itself version {text!r}")

    def imported(self, module: str) -> Fact[ImportOutcome]:
        """Return how importing `module` ended."""
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

    def env(self, name: str) -> Fact[str]:
        """Return an environment variable of the allow-list."""
        if name in self.environ:
            return Known(self.environ[name])
        return Absent(f"{name} is not set")

    def visible_devices(self) -> tuple[Device, ...]:
        """Return the GPUs a job here would see; empty where there is none or none can be read."""
        if isinstance(self.devices, Known):
            return tuple(device for device in self.devices.value if device.visible)
        return ()
