"""Packages of the wrong version, missing, doubled, half removed or laid over one another: by their metadata."""

from __future__ import annotations

from attncheck.selftest.faults import Fault, Ground, Plant, stubs
from attncheck.selftest.faults.environment import install, metadata, module
from attncheck.selftest.faults.job import ENVIRONMENT, both, having, source

NO_FLASH = ("flash-attn", "ring-flash-attn")
OLDER_UTILS = "is_flash_attn_greater_or_equal_2_10"


def fault(name: str, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault of an environment's packages."""
    return Fault(name, ENVIRONMENT, (code,), title, imitates, plant, says)


def requiring(name: str, version: str, *requires: str) -> Plant:
    """Return what installs a distribution that asks for others."""
    return lambda ground: install(ground, name, version, None, requires)


def four_over_two(ground: Ground) -> None:
    """Lay flash-attn-4's flash_attn/cute over flash-attn's."""
    modules = dict(stubs.MODULES["flash-attn"]) | {"flash_attn/cute/__init__.py": "# flash-attn's\n"}
    install(ground, "flash-attn", "2.8.3", modules)
    install(ground, "flash-attn-4", "4.0.0b36", {"flash_attn/cute/__init__.py": "# flash-attn-4's own\n"})


def twice(ground: Ground) -> None:
    """Leave the metadata of an older transformers beside the newer."""
    metadata(ground, "transformers", "4.51.3", {})


def without_metadata(ground: Ground) -> None:
    """Delete METADATA, as an interrupted uninstall does."""
    (ground.site / "transformers-4.57.6.dist-info" / "METADATA").unlink()


def files_gone(ground: Ground) -> None:
    """Delete the package and leave its metadata."""
    install(ground, "peft", "0.18.0", {"peft/__init__.py": ""})
    (ground.site / "peft" / "__init__.py").unlink()
    (ground.site / "peft").rmdir()


def checkout_in_front(ground: Ground) -> None:
    """Put a checkout with a folder `transformers` on PYTHONPATH."""
    ground.write("checkout/transformers/notes.txt", "")
    ground.write("checkout/transformers/__init__.py", "")
    ground.before_all(ground.folder / "checkout")


def newer_transformers(version: str, *changes: tuple[str, str]) -> Plant:
    """Return what installs a transformers whose attention module is changed by replacements of text."""

    def plant(ground: Ground) -> None:
        install(ground, "transformers", version)
        text = stubs.FLASH_UTILS
        for old, new in changes:
            text = text.replace(old, new)
        module(ground, "transformers/modeling_flash_attention_utils.py", text)

    return plant


_GONE = (f"def {OLDER_UTILS}():\n    return True\n", "")
FAULTS = (
    fault("torch-removed", "ATN101", "torch uninstalled", "an environment rebuilt without torch",
          having(without=("torch",))),
    fault("flash-attn-removed", "ATN109", "flash-attn uninstalled", "a job that asks for flash_attention_2 without it",
          having(without=NO_FLASH)),
    fault("flash-attn-4-over-2", "ATN113", "flash-attn-4 laid over flash-attn's own files",
          "both wheels hold flash_attn/cute (verl docker/Dockerfile.stable.sglang; prime-rl#1945)", four_over_two),
    fault("flash-attn-4-alone", "ATN114", "flash-attn-4 without flash-attn, beside verl",
          "verl 0.9.1 imports flash_attn.bert_padding", having("flash-attn-4==4.0.0b36", "verl==0.9.1",
                without=NO_FLASH)),
    fault("flash-attn-edited", "ATN115", "a module of flash-attn that is not the one installed",
          "two versions mixed in one folder (Dao-AILab/flash-attention#469)",
          source("flash_attn/bert_padding.py", "# of another release\n"), "flash_attn/bert_padding.py"),
    fault("transformers-twice", "ATN116", "metadata of transformers 4.51.3 beside 4.57.6",
          "an install into a folder that pip does not manage", twice, "4.51.3"),
    fault("metadata-missing", "ATN117", "METADATA of transformers deleted", "an interrupted uninstall",
          without_metadata, "METADATA is missing"),
    fault("package-gone", "ATN117", "peft's files deleted, its metadata left", "rm -r in site-packages", files_gone,
          "its files are gone"),
    fault("checkout-shadows", "ATN118", "a folder `transformers` first on PYTHONPATH",
          "started from a directory that holds a clone", checkout_in_front, "transformers"),
    fault("flash-attn-old", "ATN119", "flash-attn 2.0.4 under transformers 4.57.6",
          "transformers asks for 2.1.0 at least", having("flash-attn==2.0.4"), "2.0.4"),
    fault("triton-removed", "ATN121", "openrlhf without triton", "an install with --no-deps",
          having("openrlhf==0.11.2", without=("triton",))),
    fault("triton-of-another-torch", "ATN122", "triton 3.2.0 beside a torch that asks for 3.6.0",
          "another package pulled it", having("triton==3.2.0"), "3.2.0"),
    fault("torchvision-of-another-torch", "ATN123", "torchvision 0.24.0, made for torch 2.9.0", "torch alone upgraded",
          requiring("torchvision", "0.24.0", "torch==2.9.0"), "torchvision"),
    fault("flash-attn-4-requirement", "ATN127", "flash-attn-4 without nvidia-cutlass-dsl", "pip install --no-deps",
          requiring("flash-attn-4", "4.0.0b36", "nvidia-cutlass-dsl>=4.4.1"), "nvidia-cutlass-dsl"),
    fault("ring-removed", "ATN130", "no package for ring attention", "ring attention asked for, nothing that does it",
          having(without=("ring-flash-attn",))),
    fault("ring-import", "ATN140", "transformers 5.17.0 without the name that ring-flash-attn 0.1.8 imports",
          "zhuzilin/ring-flash-attention with transformers 5.4 and newer", newer_transformers("5.17.0", _GONE),
          OLDER_UTILS),
    fault("ring-signature", "ATN141", "a transformers 5.23.0 whose _flash_attention_forward has one parameter more",
          "ring-flash-attn 0.1.8 knows three signatures", newer_transformers("5.23.0", ("dropout=0.0,",
                "dropout=0.0, more=None,"))),
    fault("ring-without-flash-attn", "ATN142", "ring-flash-attn without flash-attn", "an install with --no-deps",
          having(without=("flash-attn",))),
    fault("ring-old", "ATN143", "ring-flash-attn 0.1.3 under transformers 4.57.6", "a pin that was forgotten",
          both(having("ring-flash-attn==0.1.3"), source("ring_flash_attn/__init__.py",
               "from transformers.modeling_flash_attention_utils import _flash_supports_window_size\n"))),
    fault("ring-raises", "ATN144", "a ring_flash_attn that raises when it is imported", "a file of another version",
          source("ring_flash_attn/__init__.py", "raise RuntimeError('of another version')\n"), "of another version"),
    fault("openrlhf-shim", "ATN145", "OpenRLHF and ring-flash-attn under transformers 5.4.0",
          "openrlhf 0.11.2 looks for the name in transformers.utils, which lacks it in 5.4 alone",
          both(having("openrlhf==0.11.2"), newer_transformers("5.4.0", _GONE))),
    fault("openrlhf-without-flash-attn", "ATN146", "OpenRLHF without flash-attn",
          "openrlhf 0.11.2 imports flash_attn whatever attention is asked for", both(having("openrlhf==0.11.2",
                without=NO_FLASH),
          source("openrlhf/models/__init__.py", "import flash_attn\n"))),
    fault("framework-pin", "ATN147", "a trl that asks for transformers>=4.60", "a framework installed with --no-deps",
          requiring("trl", "0.24.0", "transformers>=4.60"), "transformers>=4.60"),
    fault("frameworks-disagree", "ATN148", "openrlhf asks for transformers 5, vllm for less than 5",
          "one environment for trainer and rollout",
          both(requiring("openrlhf", "0.11.2", "transformers>=5.0"), requiring("vllm", "0.16.0", "transformers<5"))),
    fault("kernels-pin", "ATN149", "kernels 0.17.2 under transformers 5.0.0",
          "transformers 5.0 to 5.12 does not guard against kernels 0.14 and newer",
          both(having("kernels==0.17.2"), newer_transformers("5.0.0")), "kernels"),
    fault("liger-skew", "ATN150", "liger-kernel 0.8.5 under transformers 4.57.6",
          "its METADATA does not say that it patches transformers 5 alone", both(having("liger-kernel==0.8.5"),
               source("liger_kernel/transformers/monkey_patch.py", "raise ImportError('no such name')\n"))),
    fault("liger-without-triton", "ATN152", "liger-kernel without triton", "an install with --no-deps",
          both(having("liger-kernel==0.8.5", without=("triton",)),
               source("liger_kernel/transformers/__init__.py", "import triton\n"))),
    fault("vllm-of-another-torch", "ATN156", "a vllm built for torch 2.9.0", "torch upgraded after vllm",
          requiring("vllm", "0.12.0", "torch==2.9.0"), "2.9.0"),
    fault("hub-kernel", "ATN157", "no flash-attn, and kernels that transformers takes the Hub's from",
          "transformers 5 replaces flash_attention_2 in silence",
          having("kernels==0.10.0", "transformers==5.0.0", without=NO_FLASH)),
    fault("verl-qwen2-vl", "ATN160", "verl under transformers 4.53.0",
          "verl 0.9.1 raises for Qwen2-VL: 'Transformers 4.53.* is bugged'", having("verl==0.9.1",
                "transformers==4.53.0")),
    fault("transformer-engine-range", "ATN161", "TransformerEngine 2.1 beside flash-attn 2.8.3",
          "each release of TransformerEngine takes a range of flash-attn", having("transformer-engine==2.1.0"),
                "2.8.3"),
    fault("verl-critic", "ATN162", "verl without flash-attn", "verl 0.9.1 loads critics with flash_attention_2",
          having("verl==0.9.1", without=NO_FLASH)),
    fault("llamafactory-sdpa", "ATN163", "LLaMA-Factory without flash-attn",
          "`flash_attn: fa2` becomes sdpa in silence",
          having("llamafactory==0.9.4", without=NO_FLASH)),
    fault("torch-too-old", "ATN155", "torch 2.0.1 under transformers 4.57.6", "transformers switches torch off",
          having("torch==2.0.1"), "2.0.1"),
    fault("packing-leaks", "ATN401", "transformers 4.40.0 without flash-attn", "sdpa detects packed rows from 4.53 on",
          having("transformers==4.40.0", without=NO_FLASH)),
    fault("neat-packing", "ATN410", "LLaMA-Factory 0.9.2 under transformers 4.57.6",
          "transformers casts masks to bool, and neat packing's hold numbers of documents",
          having("llamafactory==0.9.2")),
)  # fmt: skip
