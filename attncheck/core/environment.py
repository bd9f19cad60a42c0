"""The examined interpreter and what is installed under it: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attncheck.core.facts import Fact, Unreadable


@dataclass(frozen=True)
class Selection:
    """Why this interpreter is examined, and which other interpreters were passed over."""

    selected_by: str = ""  # a key of SELECTION_REASONS; "" if no one recorded it
    passed_over: tuple[str, ...] = ()  # "VIRTUAL_ENV names /opt/venv, which has no bin/python"

    @property
    def reason(self) -> str:
        """The reason in a few words."""
        return SELECTION_REASONS.get(self.selected_by, self.selected_by)

    @property
    def is_notable(self) -> bool:
        """Whether the interpreter was chosen implicitly and is not the one that runs attncheck."""
        return bool(self.passed_over) or self.selected_by not in ("", "own", "--python")


NOT_RECORDED = Selection()
SELECTION_REASONS = {
    "own": "attncheck's own",
    "--python": "named by --python",
    "fit": "whose releases fit the launch best",
    "command": "the command's",
    "VIRTUAL_ENV": "named by VIRTUAL_ENV",
    "CONDA_PREFIX": "named by CONDA_PREFIX",
    "PATH": "the first on PATH",
    "ray": "a Ray worker's",
}


@dataclass(frozen=True)
class Host:
    """The examined interpreter and its machine."""

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
    cpu_count: int  # usable by this process: affinity and cgroup limits are applied
    memory_total_bytes: Fact[int]  # the smaller of RAM and the cgroup's limit
    memory_available_bytes: Fact[int]
    shm_bytes: Fact[int]  # size of /dev/shm
    selection: Selection = Selection()


@dataclass(frozen=True)
class BuildTools:
    """The tools that a source build of flash-attn would find, and how packages are installed here."""

    nvcc: Fact[str]  # "12.8"
    cuda_home: Fact[str]
    ninja: Fact[str]  # its version, or "on PATH"
    gcc: Fact[str]  # version of g++; some systems report the major version only
    pip: Fact[str]  # version of pip inside the examined environment
    uv: Fact[str]  # path of uv
    pip_config: Mapping[str, str]  # settings that change how packages are installed, with credentials removed
    externally_managed: bool  # PEP 668
    c_compiler: Fact[str] = Unreadable("not checked")  # the compiler that triton uses for its launchers
    python_headers: Fact[str] = Unreadable("not checked")  # the folder that contains Python.h
    pip_cache_apart: Fact[bool] = Unreadable("not checked")  # whether it is on a different file system from TMPDIR


@dataclass(frozen=True)
class Distribution:
    """One installed distribution (a `*.dist-info` or `*.egg-info`)."""

    name: str  # normalised (PEP 503)
    version: str  # "" if the metadata has none
    location: str  # the site directory that holds it; "" if a target names it and its files are not available
    installer: str = ""  # "pip", "uv", "conda", …
    wheel_tags: tuple[str, ...] = ()
    direct_url: str = ""
    editable: bool = False
    requires: tuple[str, ...] = ()  # Requires-Dist as written
    requires_python: str = ""
    allowed: str = ""  # versions that a target's file allows if it does not name a single one: ">=4.51,<5"
    record_sha256: str = ""  # hash of RECORD's lines about its own files (watched distributions only); "": not read
    problem: str = ""  # "METADATA is missing", "not UTF-8", …: half removed or corrupt
    files_missing: tuple[str, ...] = ()  # listed in RECORD, missing on disk (watched distributions only)
    files_altered: tuple[str, ...] = ()  # size or hash differs from RECORD (watched distributions only)
    # a rule's code -> whether its files have the fault
    faults: Mapping[str, bool] = field(default_factory=dict, hash=False)
    missing_modules: tuple[str, ...] = ()  # imported but not found: "flash_attn_2_cuda (flash_attn/a.py:15)"


@dataclass(frozen=True)
class PackageGaps:
    """Why packages that `Snapshot.distributions` does not list may be installed anyway.

    The list can be incomplete: a target (`--target`) is not inspected, and attncheck's own environment is not the
    job's.
    """

    reason: str = ""  # why an unlisted distribution may be installed; "": it is not installed
    not_installed: tuple[str, ...] = ()  # distributions that are known to be missing despite `reason`
    remarks: tuple[str, ...] = ()  # parts of a target's files that could not be understood


@dataclass(frozen=True)
class Clash:
    """A file that the RECORDs of several distributions claim."""

    path: str
    owners: tuple[str, ...]


@dataclass(frozen=True)
class Binary:
    """One extension module or shared library, read as an ELF file without loading it."""

    path: str  # relative to its site directory
    distribution: str
    module: str  # import name, "" for a plain library
    size_bytes: int
    machine: str = ""  # "x86_64"
    needed: tuple[str, ...] = ()  # DT_NEEDED
    unresolved: tuple[str, ...] = ()  # needed libraries that neither RUNPATH, torch/nvidia wheels nor ldconfig provide
    glibc_required: str = ""  # the highest GLIBC_x.y version that it requires
    torch_symbols: int = 0  # number of undefined c10/at/torch symbols that libtorch must export
    missing_symbols: tuple[str, ...] = ()  # the mangled names among them that the installed torch does not export
    sass: tuple[str, ...] = ()  # "sm_80", "sm_90", …
    ptx: tuple[str, ...] = ()  # "compute_90", …
    problem: str = ""  # "not an ELF file", "truncated", …
    versions_required: Mapping[str, str] = field(default_factory=dict, hash=False)  # "GLIBCXX" -> "3.4.32", …


@dataclass(frozen=True)
class RuntimeLibrary:
    """One of the compiler's runtime libraries; if several have the same name, the first is the loaded one."""

    name: str  # "libstdc++.so.6"
    path: str
    found_by: str  # "loaded", "torch", "python", "LD_LIBRARY_PATH", "system" or "prefix" (next to python, not searched)
    # the highest version of each set: "GLIBCXX" -> "3.4.30"
    provides: Mapping[str, str] = field(default_factory=dict, hash=False)


# From hopper/setup.py of Dao-AILab/flash-attention; the second number is the head_dim of v if it differs.
FLASH_ATTN_SWITCHES = ("FLASHATTENTION_DISABLE_", "FLASH_ATTENTION_DISABLE_")
FLASH_ATTN_3_HEAD_DIMS = (64, 96, 128, 192, 256)


@dataclass(frozen=True)
class ExtensionBuild:
    """How a compiled package was built, according to what its build recorded in it."""

    distribution: str  # "flash-attn-3", "xformers"
    torch: str = ""  # "2.10.0+cu128"
    cuda: str = ""  # "12.8", "" for a build without CUDA
    flags: Mapping[str, bool] = field(default_factory=dict, hash=False)  # "FLASHATTENTION_DISABLE_HDIM256" -> True

    def leaves_out(self, part: str) -> bool:
        """Return whether a build of flash-attn 2 or 3 excludes a part: "BACKWARD", "HDIM256"."""
        return any(self.flags.get(prefix + part, False) for prefix in FLASH_ATTN_SWITCHES)

    @property
    def head_dims(self) -> tuple[int, ...]:
        """The head_dims that a build of flash-attn-3 has kernels for; other sizes use the next larger one."""
        return tuple(size for size in FLASH_ATTN_3_HEAD_DIMS if not self.leaves_out(f"HDIM{size}"))


@dataclass(frozen=True)
class Torch:
    """What is known about torch: first the fields read from its files, then those read by a child that imported it."""

    version: str  # "2.11.0+cu130"
    cuda: Fact[str]  # "13.0"; Absent for a CPU or ROCm build
    hip: Fact[str]
    cxx11_abi: Fact[bool]

    arch_list: Fact[tuple[str, ...]] = Unreadable("torch was not imported")
    cudnn: Fact[str] = Unreadable("torch was not imported")  # "9.10.2"
    nccl: Fact[str] = Unreadable("torch was not imported")  # "2.27.3"
    cuda_available: Fact[bool] = Unreadable("torch was not imported")
    cuda_error: Fact[str] = Unreadable("torch was not imported")  # why CUDA initialisation failed
    sdpa_switches: Fact[Mapping[str, bool]] = Unreadable("torch was not imported")  # "FLASH_ATTENTION": True, …


@dataclass(frozen=True)
class ImportOutcome:
    """The outcome of importing one module in a separate child process."""

    module: str
    outcome: Literal["ok", "raised", "died", "hung", "skipped"]
    seconds: float
    exception: str = ""  # type name
    message: str = ""
    frames: tuple[str, ...] = ()  # last frames, "file:line in function"
    signal: str = ""  # "SIGSEGV" if a signal killed it
    version: str = ""  # module.__version__


@dataclass(frozen=True)
class Interfaces:
    """What imported packages provide at the points where the training stack patches them."""

    availability: Mapping[str, bool] = field(
        default_factory=dict
    )  # results of transformers' predicates: is_flash_attn_2_available
    symbols: Mapping[str, bool] = field(
        default_factory=dict
    )  # "transformers.utils:is_flash_attn_greater_or_equal_2_10"
    signatures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "module:function" -> parameter names
    unpad_input_arity: Fact[int] = Unreadable(
        "flash_attn was not imported"
    )  # number of values that flash_attn.bert_padding.unpad_input returns
    liger_model_types: Fact[tuple[str, ...]] = Unreadable("liger_kernel was not imported")
    liger_missing_targets: Fact[tuple[str, ...]] = Unreadable(
        "liger_kernel was not imported"
    )  # "module:attribute" that a patch would change to no effect
    attention_functions: Fact[tuple[str, ...]] = Unreadable("transformers was not imported")
    mask_functions: Fact[tuple[str, ...]] = Unreadable("transformers was not imported")
    kernel_fallbacks: Fact[Mapping[str, str]] = Unreadable(
        "transformers was not imported"
    )  # "flash_attention_2" -> Hub repository


@dataclass(frozen=True)
class Hub:
    """The kernels in the Hugging Face cache."""

    offline: bool  # whether HF_HUB_OFFLINE or a similar variable is set
    kernels: tuple[str, ...]  # cached kernel repositories and their versions: "owner/name", "owner/name@v3"
