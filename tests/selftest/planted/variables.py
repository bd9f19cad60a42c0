"""Environment variables that break a job: left over from debugging, half set, or no longer read."""

from __future__ import annotations

from tests.selftest.planted import PairedFault
from tests.selftest.planted.job import ENVIRONMENT, with_packages

NO_FLASH = ("flash-attn", "ring-flash-attn")


def make_fault(
    code: str,
    imitates: str,
    *packages: str,
    mentions: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    relies_on: tuple[str, ...] = (),
    **variables: str,
) -> PairedFault:
    """Return the fault of `variables`; the finding must name the first, unless `says` has other words."""
    title = " ".join(f"{name}={value}" for name, value in variables.items())
    beside = f", alongside {' and '.join(packages).replace('==', ' ')}" if packages else ""
    name = next(iter(variables)).lower().replace("_", "-")
    return PairedFault(
        f"{name}-{code[3:]}",
        ENVIRONMENT,
        (code,),
        title + beside,
        imitates,
        with_packages(*packages, without=without, **variables),
        mentions or tuple(variables)[:1],
        relies_on=relies_on,
    )


FAULTS = (
    make_fault("ATN128", "a shared machine's pip settings", PIP_NO_INDEX="1", mentions=("no-index",)),
    make_fault("ATN158", "a cluster whose nodes have no network; huggingface/transformers 5.0 takes the Hub's kernel",
          "kernels==0.10.0", "transformers==5.0.0", without=NO_FLASH, HF_HUB_OFFLINE="1"),
    make_fault("ATN164", "DeepSpeed's Ulysses needs transformers 4.51.3 (DeepSpeed, snapshot of 2026-08)",
          "deepspeed==0.18.0", "transformers==4.50.0", PARALLELISM_CONFIG_SP_SIZE="2"),
    make_fault("ATN165",
          "a shell made for TensorFlow; transformers before 5 then behaves as if torch were not installed",
          relies_on=("transformers",), USE_TF="1"),
    make_fault("ATN213", "a GPU that this node does not have", CUDA_VISIBLE_DEVICES="0,7"),
    make_fault("ATN550", "an image that puts its own NCCL before torch's; torch reports the version that it loads",
          "nvidia-nccl-cu13==2.27.3", LD_LIBRARY_PATH="/usr/local/nccl/lib"),
    make_fault("ATN551", "openrlhf 0.11.2 ppo_actor.py: ncclCommInitRank fails under NCCL 2.27 without cuMem",
          "openrlhf==0.11.2", "vllm==0.16.0", NCCL_CUMEM_ENABLE="0"),
    make_fault("ATN552", "Megatron's setting kept for FSDP", CUDA_DEVICE_MAX_CONNECTIONS="1",
          ACCELERATE_USE_FSDP="true"),
    make_fault("ATN553", "leftovers of an image in which one backend was tested", "transformer-engine==2.8.0",
          NVTE_FLASH_ATTN="0", NVTE_FUSED_ATTN="0"),
    make_fault("ATN554", "vllm 0.15 no longer reads it (vllm-project/vllm#32812)", "vllm==0.16.0",
          VLLM_ATTENTION_BACKEND="FLASH_ATTN"),
    make_fault("ATN555", "torch renamed the variable; images set the old name, scripts the new",
          PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128"),
    make_fault("ATN556", "vllm's sleep mode asserts that they are off (vllm-project/vllm#14189, #40812)",
          "vllm==0.16.0", PYTORCH_ALLOC_CONF="expandable_segments:True"),
    make_fault("ATN557", "a switch for exporting models, left in the shell (read since transformers 5.23)",
          "transformers==5.23.0", TRANSFORMERS_SDPA_FORCE_GQA="1"),
    make_fault("ATN559", "a guard silenced once, for another version", "llamafactory==0.9.4",
          DISABLE_VERSION_CHECK="1"),
    make_fault("ATN560", "a switch that is believed to forbid the Hub's kernels", "kernels==0.10.0",
          "transformers==5.0.0", without=NO_FLASH, USE_HUB_KERNELS="NO"),
    make_fault("ATN561", "set to find a crash, and never unset", CUDA_LAUNCH_BLOCKING="1",
          relies_on=("$CUBLAS_WORKSPACE_CONFIG", "$FLASH_ATTENTION_DETERMINISTIC")),
    make_fault("ATN562", "advice for RTX 4090s, followed on a machine with NVLink", NCCL_P2P_DISABLE="1",
          relies_on=("tools/nvidia-smi",)),
    make_fault("ATN701", "flash-attn before 2.4.1 has no deterministic backward", "flash-attn==2.3.6",
          FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    make_fault("ATN702", "the colon in front forgotten", CUBLAS_WORKSPACE_CONFIG="4096:8"),
    make_fault("ATN703", "Ray's workers do not inherit the driver's shell (openrlhf 0.11.2 hands none on)",
          "openrlhf==0.11.2", FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    make_fault("ATN704", "openrlhf 0.11.2 sets a private global that transformers 4.54 no longer reads",
          "openrlhf==0.11.2", CUBLAS_WORKSPACE_CONFIG=":4096:8", mentions=("FLASH_ATTENTION_DETERMINISTIC",),
          relies_on=("transformers", "$FLASH_ATTENTION_DETERMINISTIC")),
    make_fault("ATN705", "verl 0.9.1 takes log-probabilities from a Triton kernel that the flags do not reach",
          "verl==0.9.1",
          FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8",
          mentions=("VERL_DISABLE_FLASH_ATTN_CE",), relies_on=("flash-attn", "triton")),
    make_fault("ATN706", "builds of flash-attn-3 before a fix differed from run to run", "flash-attn-3==3.0.0b1",
          FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8", mentions=("flash-attn-3",)),
    make_fault("ATN707", "one of the two variables of determinism forgotten", FLASH_ATTENTION_DETERMINISTIC="1",
          mentions=("CUBLAS_WORKSPACE_CONFIG",), relies_on=("flash-attn", "$CUBLAS_WORKSPACE_CONFIG")),
    make_fault("ATN709", "a word that transformers reads as off", FLASH_ATTENTION_DETERMINISTIC="true"),
    make_fault("ATN801", "a name that torch does not read, passed on in forums", TORCH_CUDNN_SDPA_ENABLED="0"),
    make_fault("ATN802", "set to debug a graph break", TORCH_COMPILE_DISABLE="1"),
    make_fault("ATN803", "set to print inside a kernel", TRITON_INTERPRET="1"),
    make_fault("ATN804", "set to find a hung collective", TORCH_DISTRIBUTED_DEBUG="DETAIL",
          relies_on=("tools/nvidia-smi",)),
    make_fault("ATN805", "set for compute-sanitizer", PYTORCH_NO_CUDA_MEMORY_CACHING="1"),
)  # fmt: skip
