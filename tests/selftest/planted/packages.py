"""Packages of the wrong version, missing, doubled, half removed or installed over one another: by their metadata."""

from __future__ import annotations

import shutil

from attncheck.selftest.faults import Sandbox, SandboxAction
from tests.selftest.planted import stubs
from tests.selftest.planted.environment import (
    VERSIONS,
    install_distribution,
    remove_distributions,
    site_packages,
    write_distribution,
    write_module,
)
from tests.selftest.planted.job import all_of, make_fault, with_module, with_packages

NO_FLASH = ("flash-attn", "ring-flash-attn")
OLDER_UTILS = "is_flash_attn_greater_or_equal_2_10"


def with_requirements(name: str, version: str, *requires: str) -> SandboxAction:
    """Return what installs a distribution that requires others."""
    return lambda sandbox: install_distribution(sandbox, name, version, None, requires)


def install_flash_attn_4_over_2(sandbox: Sandbox) -> None:
    """Install flash-attn-4's flash_attn/cute over flash-attn's."""
    modules = dict(stubs.MODULES["flash-attn"]) | {"flash_attn/cute/__init__.py": "# flash-attn's\n"}
    install_distribution(sandbox, "flash-attn", "2.8.3", modules)
    install_distribution(sandbox, "flash-attn-4", "4.0.0b36", {"flash_attn/cute/__init__.py": "# flash-attn-4's own\n"})


def empty_environment(sandbox: Sandbox) -> None:
    """Uninstall everything, and ask for nothing in particular."""
    remove_distributions(sandbox, *VERSIONS)
    shutil.rmtree(site_packages(sandbox) / "torch")  # its libraries, which no RECORD names
    sandbox.arguments[sandbox.arguments.index("--profile") + 1] = "auto"


def duplicate_transformers(sandbox: Sandbox) -> None:
    """Leave the metadata of an older transformers alongside the newer."""
    write_distribution(sandbox, "transformers", "4.51.3", {})


def delete_metadata(sandbox: Sandbox) -> None:
    """Delete METADATA, as an interrupted uninstall does."""
    (site_packages(sandbox) / "transformers-4.57.6.dist-info" / "METADATA").unlink()


def delete_package_files(sandbox: Sandbox) -> None:
    """Delete the package and leave its metadata."""
    install_distribution(sandbox, "peft", "0.18.0", {"peft/__init__.py": ""})
    (site_packages(sandbox) / "peft" / "__init__.py").unlink()
    (site_packages(sandbox) / "peft").rmdir()


def shadow_transformers(sandbox: Sandbox) -> None:
    """Put a checkout with a folder `transformers` on PYTHONPATH."""
    sandbox.write_file("checkout/transformers/notes.txt", "")
    sandbox.write_file("checkout/transformers/__init__.py", "")
    sandbox.prepend_pythonpath(sandbox.folder / "checkout")


def with_transformers(version: str, *changes: tuple[str, str]) -> SandboxAction:
    """Return what installs a transformers whose attention module is changed by replacements of text."""

    def inject(sandbox: Sandbox) -> None:
        install_distribution(sandbox, "transformers", version)
        text = stubs.FLASH_UTILS
        for old, new in changes:
            text = text.replace(old, new)
        write_module(sandbox, "transformers/modeling_flash_attention_utils.py", text)

    return inject


_NAME_REMOVED = (f"def {OLDER_UTILS}():\n    return True\n", "")
FLASH_UTILS = "transformers.modeling_flash_attention_utils"
DIVIDES_TWICE = """\
class Trainer:
    def create_accelerator_and_postprocess(self):
        grad_acc_kwargs = {}
        grad_acc_kwargs["num_steps"] = self.args.gradient_accumulation_steps

    def training_step(self, loss):
        loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
"""
FAULTS = (
    make_fault("environment-empty", "ATN100", "nothing of the training stack installed",
          "attncheck in its own environment, as pipx and `uv tool install` make it", empty_environment),
    make_fault("torch-removed", "ATN101", "torch uninstalled", "an environment rebuilt without torch",
          with_packages(without=("torch",))),
    make_fault("flash-attn-removed", "ATN109", "flash-attn uninstalled",
          "a job that asks for flash_attention_2 without it", with_packages(without=NO_FLASH),
          relies_on=("flash-attn-3", "flash-attn-4")),
    make_fault("flash-attn-4-over-2", "ATN113", "flash-attn-4 installed over flash-attn's own files",
          "both wheels hold flash_attn/cute (verl docker/Dockerfile.stable.sglang; prime-rl#1945)",
          install_flash_attn_4_over_2),
    make_fault("flash-attn-4-alone", "ATN114", "flash-attn-4 without flash-attn, alongside verl",
          "verl 0.9.1 imports flash_attn.bert_padding", with_packages("flash-attn-4==4.0.0b36", "verl==0.9.1",
                without=NO_FLASH)),
    make_fault("flash-attn-edited", "ATN115", "a module of flash-attn that is not the one installed",
          "two versions mixed in one folder (Dao-AILab/flash-attention#469)",
          with_module("flash_attn/bert_padding.py", "# of another release\n"), "flash_attn/bert_padding.py"),
    make_fault("transformers-twice", "ATN116", "metadata of transformers 4.51.3 alongside 4.57.6",
          "an install into a folder that pip does not manage", duplicate_transformers, "4.51.3"),
    make_fault("metadata-missing", "ATN117", "METADATA of transformers deleted", "an interrupted uninstall",
          delete_metadata, "METADATA is missing"),
    make_fault("package-gone", "ATN117", "peft's files deleted, its metadata left", "rm -r in site-packages",
          delete_package_files, "its files no longer exist"),
    make_fault("checkout-shadows", "ATN118", "a folder `transformers` first on PYTHONPATH",
          "started from a directory that holds a clone", shadow_transformers, "transformers"),
    make_fault("flash-attn-old", "ATN119", "flash-attn 2.0.4 under transformers 4.57.6",
          "transformers requires 2.1.0 at least", with_packages("flash-attn==2.0.4"), "2.0.4"),
    make_fault("triton-removed", "ATN121", "openrlhf without triton", "an install with --no-deps",
          with_packages("openrlhf==0.11.2", without=("triton",)),
          relies_on=("flash-attn",)),
    make_fault("triton-of-another-torch", "ATN122", "triton 3.2.0 alongside a torch that asks for 3.6.0",
          "another package pulled it", with_packages("triton==3.2.0"), "3.2.0"),
    make_fault("torchvision-of-another-torch", "ATN123", "torchvision 0.24.0, made for torch 2.9.0",
          "torch alone upgraded", with_requirements("torchvision", "0.24.0", "torch==2.9.0"), "torchvision"),
    make_fault("flash-attn-4-requirement", "ATN127", "flash-attn-4 without nvidia-cutlass-dsl", "pip install --no-deps",
          with_requirements("flash-attn-4", "4.0.0b36", "nvidia-cutlass-dsl>=4.4.1"), "nvidia-cutlass-dsl"),
    make_fault("einops-removed", "ATN170", "flash-attn without einops", "pip install --no-deps of flash-attn's wheel",
          with_packages(without=("einops",)), "No module named 'einops'"),
    make_fault("requirement-removed", "ATN170", "trl without datasets", "pip install --no-deps",
          with_requirements("trl", "0.24.0", "datasets>=3.0.0"), "datasets>=3.0.0"),
    make_fault("ring-removed", "ATN130", "no package for ring attention",
          "ring attention requested, nothing that does it", with_packages(without=("ring-flash-attn",))),
    make_fault("name-gone", "ATN131", "a trl that imports a name which transformers does not have",
          "releases of two times: LlamaFlashAttention2 (axolotl#2266), is_torch_fx_available (vllm#55845)",
          with_module("trl/__init__.py", f"from {FLASH_UTILS} import _upad\n"), "_upad"),
    make_fault("name-gone-in-a-function", "ATN132", "a function of trl takes a name that transformers does not have",
          "releases of two times",
          with_module("trl/__init__.py", f"def train():\n    from {FLASH_UTILS} import _upad\n"), "_upad"),
    make_fault("ring-import", "ATN140", "transformers 5.17.0 without the name that ring-flash-attn 0.1.8 imports",
          "zhuzilin/ring-flash-attention with transformers 5.4 and newer", with_transformers("5.17.0", _NAME_REMOVED),
          OLDER_UTILS,
          relies_on=("ring-flash-attn",)),
    make_fault("ring-signature", "ATN141",
          "a transformers 5.23.0 whose _flash_attention_forward has one parameter more",
          "ring-flash-attn 0.1.8 knows three signatures",
          with_transformers("5.23.0", ("dropout=0.0,", "dropout=0.0, more=None,")),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-without-flash-attn", "ATN142", "ring-flash-attn without flash-attn", "an install with --no-deps",
          with_packages(without=("flash-attn",)),
          relies_on=("ring-flash-attn",)),
    make_fault("ring-old", "ATN143", "ring-flash-attn 0.1.3 under transformers 4.57.6", "a pin that was forgotten",
          all_of(with_packages("ring-flash-attn==0.1.3"), with_module("ring_flash_attn/__init__.py",
               "from transformers.modeling_flash_attention_utils import _flash_supports_window_size\n")),
          relies_on=("transformers",)),
    make_fault("ring-raises", "ATN144", "a ring_flash_attn that raises when it is imported",
          "a file of another version",
          with_module("ring_flash_attn/__init__.py", "raise RuntimeError('of another version')\n"),
          "of another version"),
    make_fault("openrlhf-shim", "ATN145", "OpenRLHF and ring-flash-attn under transformers 5.4.0",
          "openrlhf 0.11.2 looks for the name in transformers.utils, which lacks it in 5.4 alone",
          all_of(with_packages("openrlhf==0.11.2"), with_transformers("5.4.0", _NAME_REMOVED)),
          relies_on=("ring-flash-attn",)),
    make_fault("openrlhf-without-flash-attn", "ATN146", "OpenRLHF without flash-attn",
          "openrlhf 0.11.2 imports flash_attn whatever attention is requested", all_of(with_packages("openrlhf==0.11.2",
                without=NO_FLASH),
          with_module("openrlhf/models/__init__.py", "import flash_attn\n"))),
    make_fault("framework-pin", "ATN147", "a trl that asks for transformers>=4.60",
          "a framework installed with --no-deps", with_requirements("trl", "0.24.0", "transformers>=4.60"),
          "transformers>=4.60",
          relies_on=("transformers",)),
    make_fault("frameworks-disagree", "ATN148", "openrlhf asks for transformers 5, vllm for less than 5",
          "one environment for trainer and rollout",
          all_of(with_requirements("openrlhf", "0.11.2", "transformers>=5.0"),
                with_requirements("vllm", "0.16.0", "transformers<5"))),
    make_fault("kernels-pin", "ATN149", "kernels 0.17.2 under transformers 5.0.0",
          "transformers 5.0 to 5.12 does not guard against kernels 0.14 and newer",
          all_of(with_packages("kernels==0.17.2"), with_transformers("5.0.0")), "kernels"),
    make_fault("liger-skew", "ATN150", "liger-kernel 0.8.5 under transformers 4.57.6",
          "its METADATA does not say that it patches transformers 5 alone", all_of(with_packages("liger-kernel==0.8.5"),
               with_module("liger_kernel/transformers/monkey_patch.py", "raise ImportError('no such name')\n")),
          relies_on=("transformers",)),
    make_fault("liger-without-triton", "ATN152", "liger-kernel without triton", "an install with --no-deps",
          all_of(with_packages("liger-kernel==0.8.5", without=("triton",)),
               with_module("liger_kernel/transformers/__init__.py", "import triton\n"))),
    make_fault("vllm-of-another-torch", "ATN156", "a vllm built for torch 2.9.0", "torch upgraded after vllm",
          with_requirements("vllm", "0.12.0", "torch==2.9.0"), "2.9.0"),
    make_fault("hub-kernel", "ATN157", "no flash-attn, and kernels that transformers takes the Hub's from",
          "transformers 5 replaces flash_attention_2 silently",
          with_packages("kernels==0.10.0", "transformers==5.0.0", without=NO_FLASH)),
    make_fault("verl-qwen2-vl", "ATN160", "verl under transformers 4.53.0",
          "verl 0.9.1 raises for Qwen2-VL: 'Transformers 4.53.* is bugged'", with_packages("verl==0.9.1",
                "transformers==4.53.0"),
          relies_on=("model/config.json",)),
    make_fault("transformer-engine-range", "ATN161", "TransformerEngine 2.1 alongside flash-attn 2.8.3",
          "each release of TransformerEngine takes a range of flash-attn", with_packages("transformer-engine==2.1.0"),
                "2.8.3",
          relies_on=("flash-attn",)),
    make_fault("verl-critic", "ATN162", "verl without flash-attn", "verl 0.9.1 loads critics with flash_attention_2",
          with_packages("verl==0.9.1", without=NO_FLASH),
          relies_on=("kernels",)),
    make_fault("llamafactory-sdpa", "ATN163", "LLaMA-Factory without flash-attn",
          "`flash_attn: fa2` becomes sdpa silently",
          with_packages("llamafactory==0.9.4", without=NO_FLASH)),
    make_fault("torch-too-old", "ATN155", "torch 2.0.1 under transformers 4.57.6", "transformers switches torch off",
          with_packages("torch==2.0.1"), "2.0.1",
          relies_on=("transformers",)),
    make_fault("gradients-divided-twice", "ATN457", "a Trainer that divides gradients and has accelerate divide them",
          "transformers 5.2.0 to 5.5.3 (huggingface/transformers#43919)",
          all_of(with_packages("accelerate==1.12.0"), with_module("transformers/trainer.py", DIVIDES_TWICE)),
          "trainer.py"),
    make_fault("packing-leaks", "ATN401", "transformers 4.40.0 without flash-attn",
          "sdpa detects packed rows since 4.53", with_packages("transformers==4.40.0", without=NO_FLASH),
          relies_on=("flash-attn-3",)),
    make_fault("neat-packing", "ATN410", "LLaMA-Factory 0.9.2 under transformers 4.57.6",
          "transformers casts masks to bool, and neat packing's hold numbers of documents",
          with_packages("llamafactory==0.9.2"),
          relies_on=("transformers",)),
)  # fmt: skip
