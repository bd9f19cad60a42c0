"""What is installed, for which GPUs, and how ranks talk: packages, kernels, drivers, NCCL, determinism, variables.

Most modes are patched recordings of one H200, those of the rules' own tests; every rule is run on them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.collectives import Communication
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import BackendState, MeasuredOn
from attncheck.doctor.engine import run_rules
from attncheck.doctor.needs import Need
from attncheck.doctor.profile import needs_of_profile
from attncheck.lint import run as lint
from attncheck.lint.context import Request
from attncheck.measure.determinism import make_report
from attncheck.ring.communication_findings import make_findings
from tests import snapshots as s
from tests.catalogue.mode import Missed, Mode
from tests.lint.frameworks.test_megatron import COMMAND, SIZES
from tests.lint.launches import read_model, read_no_file
from tests.measure.test_determinism import PLAIN, STRICT, VARYING
from tests.ring.test_communication import exchange_result, two_node_result

Presentation = Callable[[Path], Report]


def record(rule: str, title: str) -> Presentation:
    """Present the recording `title` of a rule's tests, "flash_attn.flash_attn_abi", to every rule."""
    snapshot: Snapshot = importlib.import_module(f"tests.doctor.rules.{rule}").FIRES[title]
    return judge(snapshot)


def judge(snapshot: Snapshot) -> Presentation:
    """Present a snapshot to every rule, with or without a launch."""
    needs = needs_of_profile("all", snapshot)
    job: frozenset[Need] = frozenset({"job"} if isinstance(snapshot.job, s.Known) else ())
    return lambda folder: run_rules(snapshot, needs | job)


def launch(command: str, snapshot: Snapshot, **fields: Any) -> Presentation:
    """Present a launch to lint."""
    request = Request((Source("run.sh", command, "shell"),), **fields)
    return lambda folder: lint.run(snapshot, request, read_model, read_no_file)


def communicate(communication: Communication) -> Presentation:
    """Present what ranks found of each other."""
    return lambda folder: Report("doctor", s.h200x2(), make_findings(communication))


def repeat(folder: Path) -> Report:
    """Present a backward that gives other bits from call to call, and holds still when it is told to."""
    measurements = (replace(PLAIN, differences=VARYING), STRICT)
    return make_report(s.h200(), (BackendState("sdpa_flash", "", "torch"),), measurements, MeasuredOn("cuda"))


def mode(name: str, present: Presentation | str, title: str, codes: str, fix: str, tried: str) -> Mode:
    """Return a mode presented by a rule's recording, by `present` the rule and `title` the recording, or otherwise."""
    presentation = record(present, title) if isinstance(present, str) else present
    return Mode(name, presentation, tuple(codes.split()), fix, tried)


def on_bare_cards(communication: Communication) -> Communication:
    """Return the result on the same GPUs if no variable of NCCL is set."""
    return replace(communication, ranks=tuple(replace(facts, environ={}) for facts in communication.ranks))


BUILT = "flash-attn 2.8.3 was built from its sdist for sm_90 with such a command on one H200 (torch 2.11+cu130, 445 s)"
SDPA = "sdpa trains: `attncheck smoke` on CPU and on one H200; no other GPU was to be had"
UNSET = "tests/doctor/test_rules.py::test_keeps_silent: without the variable the rule is silent"
ON_H200 = "measured on one H200: `attncheck determinism`, 32 calls with the same bits"
NAMES = "the published file names were read from the release, attncheck/doctor/knowledge/flash_attn_wheels.py"
FA, GPUS, ENV, TF, DET, TORCH = (
    "flash_attn",
    "gpus",
    "environment_variables",
    "transformers",
    "determinism",
    "torch",
)
NVLS = on_bare_cards(
    exchange_result(outcome="raised", reason="rank 1: transport/nvls.cc: Cuda failure 'invalid argument'")
)
ROCE = exchange_result(outcome="raised", reason="rank 0: NET/IB : Got completion with error 12, ncclRemoteError")
HANG = exchange_result(outcome="timed_out", reason="no answer within 30 s")

MODES = [
    mode("fa-abi-undefined-symbol", f"{FA}.flash_attn_abi", "the import says undefined symbol", "ATN104",
         "--force-reinstall https://github.com/Dao-AILab", NAMES),
    mode("fa-no-prebuilt-wheel", f"{FA}.flash_attn_missing", "no wheel for torch 2.11", "ATN109", "MAX_JOBS=16", BUILT),
    mode("fa-build-no-nvcc", f"{FA}.flash_attn_build_tools", "no nvcc", "ATN110", "CUDA toolkit 13.0", BUILT),
    mode("ampere-only", f"{GPUS}.gpu_too_old_for_flash", "V100", "ATN206", "sdpa", SDPA),
    mode("fa-build-oom-slow", f"{FA}.flash_attn_build_memory", "one job too many", "ATN111", "MAX_JOBS=2",
         "memory of a job measured in builds of 2.8.3: attncheck/doctor/knowledge/flash_attn_build.py"),
    mode("hub-kernel-v3-gqa-backward", f"{FA}.hub_kernel_gqa_backward", "5.18.0", "ATN159", "MAX_JOBS=16", BUILT),
    mode("driver-too-old", f"{GPUS}.driver_too_old", "CUDA 13 on an R550 driver", "ATN201", "whl/cu126",
         "PyTorch's index lists it (knowledge/torch_builds.py), and the rule is silent on CUDA 12.6; not run"),
    mode("flash-bwd-nondeterministic", repeat, "", "ATN711", "use_deterministic_algorithms", ON_H200),
    mode("bert-padding-unpad-arity", "models.remote_code_unpad_input", "five values measured", "ATN305", "*_ =",
         "the line was run on flash-attn 2.8.3's own unpad_input, on CPU: five values, one left over"),
    mode("hub-fallback-surprise", f"{FA}.hub_kernel_surprise", "5.17.0", "ATN157", "sdpa", SDPA),
    mode("cu13-asks-cu12-wheel", f"{FA}.flash_attn_cuda_runtime", "static: a cu12 wheel under CUDA 13", "ATN105",
         "--no-build-isolation", BUILT),
    mode("availability-is-metadata-only", f"{FA}.flash_attn_abi", "no wheel for this torch: a build", "ATN104",
         "--no-build-isolation", BUILT),
    mode("fa4-fa2-namespace-clash", f"{FA}.flash_attn_four_over_two", "flash-attn-4 came last", "ATN113",
         "uninstall",
         "4.0.0b36's wheel holds flash_attn/cute alone, and files of it overlap 2.8.3's; then " + BUILT),
    mode("vllm-upgrades-torch", f"{TF}.vllm_torch_pin", "vllm for torch 2.12", "ATN156", "torch==2.12.0",
         "the pair that vllm's own METADATA names; the rule is silent on it"),
    mode("triton-ce-nondeterministic-or-missing", f"{FA}.flash_attn_without_triton", "no triton", "ATN121",
         "triton==3.6.0", "the triton that torch 2.11's METADATA names, with which liger-kernel ran on one H200"),
    mode("nccl-p2p-consumer", f"{GPUS}.rtx_40_peer_access", "two RTX 4090 on R535", "ATN220", "NCCL_P2P_DISABLE=1",
         "accelerate 1.10.0 state.py:312: with both set it does not raise"),
    mode("blackwell-no-kernel-image", f"{GPUS}.flash_attn_lacks_gpu_architecture", "Hopper's code on an RTX 5090",
         "ATN207", "sdpa", SDPA),
    mode("liger-unsupported-model", "models.liger_unsupported_model", "a type that liger does not list", "ATN322",
         "use_liger_kernel: false", "without liger nothing of it is imported: `attncheck smoke` on CPU"),
    mode("kernels-version-pin", f"{TF}.kernels_version_pin", "5.12.0 breaks on importing 0.17", "ATN149",
         "kernels>=0.12.0,<0.13",
         "tried with 5.12.0 alongside kernels 0.9.1 to 0.17.2: attncheck/doctor/knowledge/transformers.py"),
    mode("glibc-too-old", f"{FA}.flash_attn_glibc", "one minor version short", "ATN106", "2.7.4.post1", NAMES),
    mode("pip-wheel-cache-stale", f"{TORCH}.package_files_disturbed", "a module of flash-attn is another version's",
         "ATN115", "--no-cache-dir", BUILT),
    mode("fa4-bwd-hang-jit", f"{FA}.flash_attn_four_requirements", "nvidia-cutlass-dsl is missing", "ATN127",
         "nvidia-cutlass-dsl>=4.6.2", "what 4.0.0b36's METADATA requires; not run on a B300"),
    mode("determinism-env-not-propagated", f"{ENV}.determinism_not_forwarded_by_ray", "OpenRLHF hands on none",
         "ATN703",
         "ray job submit --runtime-env-json", "ray's documented option; not run on a cluster"),
    mode("liger-transformers-skew", f"{TF}.liger_transformers_skew", "0.8.5 under 4.57.6", "ATN150",
         "liger-kernel==0.8.4",
         "run: liger-kernel 0.8.4 is imported and patches llama's forward alongside transformers 4.57.6"),
    mode("nccl-nvls-hang", communicate(NVLS), "", "ATN521", "NCCL_NVLS_ENABLE=0",
         "eight H200s ran ring-flash-attn's benchmark with NVLS off; a failing fabric was not to be had"),
    mode("te-no-backend", f"{ENV}.transformer_engine_backends_off", "two off", "ATN553", "unset NVTE_FLASH_ATTN",
         UNSET),
    mode("framework-pins-conflict", f"{TF}.frameworks_cannot_share", "OpenRLHF 0.11.2 and verl 0.9.1", "ATN148",
         "python -m venv", "the rule is silent if one of them is installed"),
    mode("flash-supports-window-import", "models.remote_code_removed_imports",
         "_flash_supports_window_size on 4.54.0", "ATN306", "transformers<4.54.0",
         "the name is in 4.53.3's wheel and not in 4.54.0's"),
    mode("liger-silent-noop-patches", f"{TF}.liger_silent_noop", "mistral's loss class no longer exists", "ATN151",
         "fused_linear_cross_entropy=True",
         "run: with these arguments liger-kernel 0.8.5 replaces mistral's forward alongside transformers 5.17.0"),
    mode("nccl-ib-error12", communicate(ROCE), "", "ATN521", "NCCL_IB_GID_INDEX=3",
         "no RoCE fabric was to be had: the title says that it is not tried; upstream's reports end with it"),
    mode("nccl-system-vs-wheel", f"{ENV}.nccl_not_the_wheels", "a module system's NCCL", "ATN550",
         "unset LD_LIBRARY_PATH", "run with a real NCCL 2.21 preloaded: without the variable torch loads its wheel's"),
    mode("fa3-not-default-install", "launch.launch_package_missing", "flash_attention_3", "ATN452", "sdpa", SDPA),
    mode("fa4-wrong-numerics", f"{FA}.flash_attn_four_early_beta", "RTX 5090, b12", "ATN175", "flash-attn-4==4.0.0b36",
         "upstream's repair; no sm_120 was to be had, and the title says so"),
    mode("fa4-unsupported-shapes", "models.fa4_unsupported_head_dim", "192 on a B200", "ATN323", "flash_attention_2",
         "flash-attn 2.8.3 has kernels of that size: csrc/flash_attn/src/flash_bwd_hdim192_*.cu; not run on a B200"),
    mode("sdpa-backend-nondeterministic", repeat, "", "ATN711", "use_deterministic_algorithms", ON_H200),
    mode("cublas-workspace-missing", f"{DET}.determinism_half_set", "flash alone", "ATN707", ":4096:8",
         "the value that torch's own error asks for; the rule is silent with it"),
    mode("ring-slow-no-nvlink", f"{GPUS}.ring_without_nvlink", "two bridged pairs", "ATN216",
         "CUDA_VISIBLE_DEVICES=0,1", "the rule is silent on the GPUs that are left"),
    mode("p2p-batch-isend-irecv-hang", communicate(HANG), "", "ATN521", "torch.distributed.barrier",
         "upstream's answer in pytorch#108378; a hang of that kind was not to be had, and the title says so"),
    mode("multinode-version-skew", communicate(two_node_result(torch="2.10.0+cu130")), "", "ATN522", "one image",
         "tests/ring/test_communication.py: ranks that agree give no finding"),
    mode("hf-offline-cluster", f"{FA}.hub_kernel_offline", "offline and not cached", "ATN158", "version=3",
         "run with kernels 0.12.3, 0.15.2, 0.16.1, 0.17.2 up to the download"),
    mode("openrlhf-deterministic_g-noop", f"{DET}.openrlhf_deterministic_noop", "5.15.0", "ATN704",
         "FLASH_ATTENTION_DETERMINISTIC=1", "transformers 5.17.0 reads it: modeling_flash_attention_utils.py:659"),
    mode("nccl-cumem-weight-sync", f"{ENV}.nccl_cumem_vllm", "vllm 0.29.0", "ATN551", "unset NCCL_CUMEM_ENABLE", UNSET),
    mode("fabric-manager-down", f"{GPUS}.fabric_manager_down", "torch says 802", "ATN204", "nvidia-fabricmanager",
         "NVIDIA's documented command; needs a machine's administrator"),
    mode("fa3-deterministic-not", f"{DET}.flash_attn_3_deterministic", "FA3 in a run that should repeat", "ATN706",
         "flash_attention_2", ON_H200),
    mode("nvte-env-conflict", f"{ENV}.transformer_engine_backends_off", "flash off", "ATN553",
         "unset NVTE_FLASH_ATTN", UNSET),
    mode("vllm-attention-backend-env", f"{ENV}.vllm_attention_backend_env", "0.15.0", "ATN554",
         "--attention-backend", "the option is in that vllm's source, which the rule cites; not run"),
    mode("fa-kwarg-deterministic-old", f"{DET}.deterministic_flash_too_old", "2.4.0", "ATN701", "flash-attn==2.8.3",
         BUILT),
    mode("te-cp-thd-rounding", launch(COMMAND + SIZES + "--seq-length 8190", s.h200()), "", "ATN441",
         "8188", "tests/lint/frameworks/test_megatron.py::test_the_length_that_is_offered_is_taken"),
    mode("alloc-conf-renamed", f"{ENV}.alloc_conf_disagree", "they disagree", "ATN555", "PYTORCH_CUDA_ALLOC_CONF",
         UNSET),
    mode("deterministic-memory-cost", f"{DET}.deterministic_backward_memory", "256k tokens", "ATN176",
         "shorter rows", "half the tokens take half the buffer, by flash-attn's own formula"),
    mode("fa-custom-build-features", f"{FA}.flash_attn_partial_build", "inference only", "ATN174", "sdpa", SDPA),
    mode("cuda-device-max-connections", f"{ENV}.device_max_connections", "1 under FSDP", "ATN552",
         "unset CUDA_DEVICE_MAX_CONNECTIONS", UNSET),
]  # fmt: skip

MISSED = [
    Missed("fa3-cb-autoswitch-t4", "transformers' continuous batching is generation; no training job runs it"),
    Missed("liger-fused-ce-no-logits", "what uses the logits (compute_metrics, a custom loss) is in the user's script"),
]
