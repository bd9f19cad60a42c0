"""Cases for ATN123."""

from tests import snapshots as s

SYMBOL = "_ZNK3c106SymInt6sym_neERKS0_"
TORCHVISION = s.with_package(s.h200(), "torchvision", "0.23.0", requires=("numpy", "torch==2.8.0"))

FIRES = {
    "torchvision of torch 2.8 alongside 2.11": TORCHVISION,
    "its extension requires what is not there, too": s.with_binary(
        TORCHVISION, "torchvision._C", missing_symbols=(SYMBOL,)
    ),
    "torchaudio of torch 2.10": s.with_package(s.h200(), "torchaudio", "2.10.0", requires=("torch==2.10.0",)),
    "xformers asks for a newer torch": s.with_package(s.h200(), "xformers", "0.0.99", requires=("torch>=2.12",)),
    "xformers by its symbols": s.with_binary(
        s.with_package(s.h200(), "xformers", "0.0.35", requires=("torch>=2.10",)),
        "xformers._C",
        distribution="xformers",
        missing_symbols=(SYMBOL,),
    ),
    "torch cannot be imported: the versions still tell": s.with_import(
        TORCHVISION, "torch", "raised", exception="ImportError", message="no"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "torchvision of this torch": s.with_package(s.h200(), "torchvision", "0.26.0", requires=("torch (==2.11.0)",)),
    "torchaudio 2.11 names no torch": s.with_package(s.h200(), "torchaudio", "2.11.0", requires=()),
    "its extension was imported": s.with_import(TORCHVISION, "torchvision._C"),
}


def says(finding: str) -> bool:
    """Return whether the finding names torch and keeps it."""
    return "2.11.0+cu130" in finding and "torch==2.8.0'" not in finding.split("fixes=")[1]
