"""The published flash-attn wheels, and how their names are formed.

PyPI has only flash-attn's source distribution. Wheels are attached to the GitHub releases of Dao-AILab/flash-attention,
and the build tag is only in the file name: flash_attn-V+cu{12|13}torch{X.Y}cxx11abi{TRUE|FALSE}-cpXY-cpXY-linux_M.

Sources, read 2026-11-21:
- the naming: `get_wheel_url` in setup.py of the 2.8.3, 2.8.3.post1 and 2.8.3.post2 source distributions (PyPI). 2.8.3
  calls every CUDA except 11 "cu12"; since 2.8.3.post1 CUDA 13 is "cu13".
- what each release's workflow builds: .github/workflows/publish.yml at the tags v2.7.4.post1, v2.8.1 and v2.8.3.
- what is actually attached to the releases, which is more: wheels for Python 3.12 only were added by hand. v2.8.3 (53
  assets) and v2.8.1 come from asset lists that others generated from GitHub with the hashes of the files. The cu13 ones
  of v2.8.3 come from public install scripts that name and hash them, and from Dao-AILab/flash-attention#2255, in which
  Python 3.10's were withdrawn. v2.7.4.post1 is inferred only from its workflow: no asset list was found.
- v2.8.3.post1 republishes v2.8.3's matrix and drops the wheels for torch 2.9 (CUDA 12) and 2.10; 2.8.3.post2 is on
  PyPI, and no wheel of it was found. So the newest version is not the best one to request.
- glibc: the 2.8 wheels require GLIBC_2.32 (Dao-AILab/flash-attention#1762, #1708); 2.7.4.post1 was built on
  ubuntu-20.04, whose glibc is 2.31.
"""

from collections.abc import Iterator
from typing import NamedTuple

RELEASES_URL = "https://github.com/Dao-AILab/flash-attention/releases/download"
# flash-attn-3 is only on PyTorch's own index, by the CUDA major version of torch.
FLASH_ATTN_3_INDEX = {12: "https://download.pytorch.org/whl/cu126", 13: "https://download.pytorch.org/whl/cu130"}


class WheelMatrix(NamedTuple):
    """The wheels of one release that share a set of tags; every combination of the tags exists."""

    version: str
    cuda: int
    torch: tuple[str, ...]
    pythons: tuple[str, ...]
    cxx11_abi: tuple[bool, ...]
    machines: tuple[str, ...]
    glibc: str  # the oldest glibc that loads them
    without: frozenset[tuple[str, str]] = frozenset()  # (torch, python) pairs without a wheel


_BOTH_ABIS = (True, False)
_X86, _ARM = "x86_64", "aarch64"
_CP39_TO_313 = ("cp39", "cp310", "cp311", "cp312", "cp313")

# In order of preference: the newest version that has a wheel is used.
WHEEL_MATRICES: tuple[WheelMatrix, ...] = (
    WheelMatrix(
        version="2.8.3",
        cuda=12,
        torch=("2.4", "2.5", "2.6", "2.7", "2.8"),
        pythons=_CP39_TO_313,
        cxx11_abi=_BOTH_ABIS,
        machines=(_X86,),
        glibc="2.32",
        without=frozenset({("2.4", "cp313")}),
    ),
    WheelMatrix("2.8.3", 12, ("2.9",), ("cp312",), (True,), (_X86, _ARM), "2.32"),
    WheelMatrix("2.8.3", 13, ("2.9",), ("cp312",), (True,), (_X86,), "2.32"),
    WheelMatrix("2.8.3", 13, ("2.10",), ("cp312",), (True,), (_X86, _ARM), "2.32"),
    WheelMatrix("2.8.1", 12, ("2.8", "2.9", "2.10"), ("cp312",), (True,), (_X86, _ARM), "2.32"),
    WheelMatrix("2.8.1", 13, ("2.9",), ("cp312",), (True,), (_X86, _ARM), "2.32"),
    WheelMatrix(
        version="2.7.4.post1",
        cuda=12,
        torch=("2.2", "2.3", "2.4", "2.5", "2.6"),
        pythons=_CP39_TO_313,
        cxx11_abi=_BOTH_ABIS,
        machines=(_X86,),
        glibc="2.31",
        without=frozenset({("2.2", "cp313"), ("2.3", "cp313"), ("2.4", "cp313")}),
    ),
)


class WheelTags(NamedTuple):
    """The tags that select a wheel: torch's minor version, CUDA major and C++ ABI, the Python tag, the machine."""

    torch: str  # "2.8"
    cuda: int
    cxx11_abi: bool
    python: str  # "cp312"
    machine: str  # "x86_64"


class Wheel(NamedTuple):
    """One published wheel."""

    version: str
    url: str
    glibc: str


def matching_wheels(tags: WheelTags) -> Iterator[Wheel]:
    """Yield the published wheels with these tags, the preferred one first."""
    for matrix in WHEEL_MATRICES:
        fits = (
            tags.cuda == matrix.cuda
            and tags.torch in matrix.torch
            and tags.python in matrix.pythons
            and tags.cxx11_abi in matrix.cxx11_abi
            and tags.machine in matrix.machines
            and (tags.torch, tags.python) not in matrix.without
        )
        if fits:
            name = wheel_file_name(matrix.version, tags, matrix.cuda)
            yield Wheel(matrix.version, f"{RELEASES_URL}/v{matrix.version}/{name}", matrix.glibc)


def wheel_file_name(version: str, tags: WheelTags, cuda: int) -> str:
    """Return the file name of the wheel of `version` with these tags, for CUDA major `cuda`."""
    abi = str(tags.cxx11_abi).upper()
    platform_tags = f"{tags.python}-{tags.python}-linux_{tags.machine}"
    return f"flash_attn-{version}+cu{cuda}torch{tags.torch}cxx11abi{abi}-{platform_tags}.whl"
