"""A script that trains on CUDA runs on a CPU in a rehearsal, and the report says so."""

from __future__ import annotations

import contextlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.rehearsal.execution import list_replaced, list_watched_differences
from attncheck.rehearsal.watcher import deepspeed, devices

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
import torch
from attncheck.rehearsal.watcher.devices import allow_unused_parameters, keep_on_cpu, make_mesh_on_cpu, shard_on_cpu
allow_unused_parameters(torch.nn.parallel.distributed)
keep_on_cpu(torch)
torch.cuda.set_device(1)
torch.cuda.synchronize()
device = torch.device("cuda")
model = torch.nn.Linear(4, 4).cuda().to(device, dtype=torch.float32).to(f"cuda:{torch.cuda.current_device()}")
batch = torch.ones(2, 4, device="cuda").to(0, non_blocking=True) + torch.arange(4).pin_memory().to(device=device)
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(batch)
assert output.dtype == torch.bfloat16
with torch.autocast(device_type="cuda", enabled=False):
    assert model(batch).dtype == torch.float32
original, calls = torch.Tensor.backward, []
def backward(self, *arguments, **options):  # as the recorder follows it
    calls.append(float(self))
    return original(self, *arguments, **options)
torch.Tensor.backward = backward
output.float().sum().backward(retain_graph=True)
assert len(calls) == 1
assert model.weight.grad.device.type == "cpu" and batch.to(torch.float64).dtype == torch.float64
assert torch.zeros(1, device="meta").is_meta and torch.full((2,), 0).tolist() == [0, 0]
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], output_device=0)
wrapped(batch).sum().backward()
assert wrapped.find_unused_parameters
from torch.distributed import fsdp
make_mesh_on_cpu(torch.distributed.device_mesh)
shard_on_cpu(fsdp.fully_sharded_data_parallel)
mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (1,))
options = {"device_id": torch.cuda.current_device(), "device_mesh": mesh, "sync_module_states": True}
sharded = fsdp.FullyShardedDataParallel(torch.nn.Linear(4, 4), **options)
sharded(batch).sum().backward()
assert float(sharded.clip_grad_norm_(1.0)) > 0 and mesh.device_type == "cpu"
print(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory, torch.cuda.memory_allocated())
assert torch.cuda.get_device_capability() >= (8, 0) and not torch.cuda.is_available()
"""


def test_what_a_script_places_on_cuda_is_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "watch").mkdir()
    environ = {"PYTHONPATH": str(REPOSITORY), "ATTNCHECK_WATCH": str(tmp_path / "watch"), "CUDA_VISIBLE_DEVICES": ""}
    environ |= {"ATTNCHECK_WITHOUT_GPU": "1", "ATTNCHECK_WITHOUT_SHARDING": "1"}
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environ)
    assert ended.returncode == 0, ended.stderr
    assert list_replaced(str(tmp_path)) == [
        "what the script places on CUDA stays on the CPU, because this machine has no GPU"
    ]


def test_accelerates_ranks_form_a_group_without_a_gpu() -> None:
    """As accelerate 1.15.0's PartialState, whose ranks form one only on GPUs, or on CPUs if it is given `cpu`."""

    class PartialState:
        def __init__(self, cpu: bool = False, **options: Any) -> None:
            self.cpu, self.options = cpu, options

    devices.join_ranks_on_cpu(SimpleNamespace(PartialState=PartialState))
    states = [PartialState(), PartialState(False, backend="gloo"), PartialState(cpu=True)]
    assert [state.cpu for state in states] == [not torch.cuda.is_available()] * 2 + [True]
    assert states[1].options == {"backend": "gloo"}


@pytest.mark.parametrize(
    ("options", "loaded", "said"),
    [
        ({"device_map": {"": 0}}, {"device_map": {"": "cpu"}}, "CUDA"),
        ({"device_map": "cuda:1"}, {"device_map": "cpu"}, "CUDA"),
        ({"device_map": "auto", "load_in_8bit": True}, {"device_map": "auto"}, "load_in_8bit"),
        ({"quantization_config": SimpleNamespace(load_in_4bit=True, load_in_8bit=False)}, {}, "load_in_4bit"),
        ({"quantization_config": SimpleNamespace(group_size=128)}, None, ""),
    ],
)
def test_a_model_is_loaded_where_there_is_no_gpu(
    options: dict[str, Any], loaded: dict[str, Any] | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PreTrainedModel:
        @classmethod
        def from_pretrained(cls, name: str, **options: Any) -> dict[str, Any]:
            return options

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    devices.keep_off_absent_devices(SimpleNamespace(PreTrainedModel=PreTrainedModel))
    assert PreTrainedModel.from_pretrained("a/b", **options) == (options if loaded is None else loaded)
    assert [line for line in list_replaced(str(tmp_path)) if said and said in line] == list_replaced(str(tmp_path))
    assert bool(list_replaced(str(tmp_path))) == bool(said)
    assert [difference.written for difference in list_watched_differences(str(tmp_path))] == [said] * ("bit" in said)


@pytest.mark.parametrize("reason", ["missing", "old"])
def test_a_quantisation_is_described_without_its_package(reason: str) -> None:
    """As transformers 4.57.3, which reads the package's version; a release that does not fit still ends the script."""

    class Configuration:
        def post_init(self) -> None:
            raise importlib.metadata.PackageNotFoundError if reason == "missing" else ValueError("old")

    devices.configure_without_package(SimpleNamespace(BitsAndBytesConfig=Configuration))
    with contextlib.nullcontext() if reason == "missing" else pytest.raises(ValueError, match="old"):
        Configuration().post_init()


@pytest.mark.parametrize(
    ("dtype", "mixed", "is_left_out", "held"),
    [
        ("float16", "no", True, "float32"),
        ("bfloat16", "bf16", True, "float32"),
        ("bfloat16", "no", True, "bfloat16"),  # a training in bfloat16 alone
        ("float16", "no", False, "float16"),
    ],
)
def test_weights_are_held_as_the_sharding_that_is_left_out_holds_them(
    dtype: str, mixed: str, is_left_out: bool, held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Accelerator:
        mixed_precision = mixed

        def prepare_model(self, model: Any) -> Any:
            return model

    (tmp_path / "watch").mkdir()
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    monkeypatch.setenv("ATTNCHECK_WITHOUT_SHARDING", "1" if is_left_out else "")
    devices.hold_in_float32(SimpleNamespace(Accelerator=Accelerator))
    model = torch.nn.Linear(2, 2).to(getattr(torch, dtype))
    model.bias.requires_grad_(False)
    Accelerator().prepare_model(model)
    assert model.weight.dtype == getattr(torch, held) and model.bias.dtype == getattr(torch, dtype)
    assert bool(list_replaced(str(tmp_path))) == (held != dtype)


@pytest.mark.parametrize(
    ("variable", "checkpoints", "reentrant", "expected"),
    [("1", False, True, True), ("1", True, False, True), ("1", True, True, False), ("", False, True, False)],
)
def test_what_replaces_sharding_may_leave_parameters_unused(
    monkeypatch: pytest.MonkeyPatch, variable: str, checkpoints: bool, reentrant: bool, expected: bool
) -> None:
    """DeepSpeed and FSDP allow it; DDP's search for such parameters does not fit reentrant checkpoints."""
    monkeypatch.setenv("ATTNCHECK_WITHOUT_SHARDING", variable)

    class Wrapper:
        def __init__(self, model: Any, find_unused_parameters: bool = False) -> None:
            self.finds = find_unused_parameters

    devices.allow_unused_parameters(SimpleNamespace(DistributedDataParallel=Wrapper))
    checkpoint = SimpleNamespace(keywords={"use_reentrant": reentrant})
    layer = SimpleNamespace(gradient_checkpointing=checkpoints, _gradient_checkpointing_func=checkpoint)
    wrapper: Any = Wrapper(SimpleNamespace(modules=lambda: [layer]))
    assert wrapper.finds == expected
    monkeypatch.setenv("ATTNCHECK_DRIVER", "trl")  # whose trainers enable checkpoints again after each generation
    assert Wrapper(SimpleNamespace(modules=lambda: [layer])).finds == (expected and not checkpoints)


@pytest.mark.parametrize(("trains", "hook", "finds"), [(True, False, True), (False, False, False), (False, True, True)])
def test_reentrant_checkpoints_that_compute_the_same_leave_parameters_unused(
    monkeypatch: pytest.MonkeyPatch, trains: bool, hook: bool, finds: bool
) -> None:
    """Without a gradient of the first layer's input they compute other gradients, which is a fault to be found."""
    transformers: Any = pytest.importorskip("transformers")

    class Wrapper:
        def __init__(self, model: Any, find_unused_parameters: bool = False) -> None:
            self.finds = find_unused_parameters

    monkeypatch.setenv("ATTNCHECK_WITHOUT_SHARDING", "1")
    devices.allow_unused_parameters(SimpleNamespace(DistributedDataParallel=Wrapper))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, num_hidden_layers=2, **sizes))
    model.train().gradient_checkpointing_enable({"use_reentrant": True})
    model.get_input_embeddings().requires_grad_(trains)
    if hook:
        model.enable_input_require_grads()
    else:  # transformers 5 does it if checkpoints are enabled
        vars(model).pop("_require_grads_hooks", None)
        vars(model).pop("_require_grads_hook", None)
    tokens, gradients = torch.arange(8).unsqueeze(0), []
    for _ in range(2):
        if trains or hook:
            model(input_ids=tokens, labels=tokens).loss.backward()
            gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
            model.zero_grad()
        assert Wrapper(model).finds == finds
    assert not gradients or all(map(torch.equal, *gradients))


def test_a_trainer_that_looks_for_unused_parameters_does_not_stop_what_replaces_sharding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers' does so for a model with adapters, which with DDP and reentrant checkpoints ends in torch."""

    class Wrapper:
        def __init__(self, model: Any, find_unused_parameters: bool = False) -> None:
            self.finds = find_unused_parameters

    devices.allow_unused_parameters(SimpleNamespace(DistributedDataParallel=Wrapper))
    layer = SimpleNamespace(gradient_checkpointing=True, _gradient_checkpointing_func=SimpleNamespace(keywords={}))
    model = SimpleNamespace(modules=lambda: [layer])
    for variable, finds in (("1", False), ("", True)):
        monkeypatch.setenv("ATTNCHECK_WITHOUT_SHARDING", variable)
        assert Wrapper(model, find_unused_parameters=True).finds == finds


@pytest.mark.parametrize("has_gpu", [False, True])
def test_deepspeed_compiles_nothing_without_a_gpu(
    has_gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own optimisers stay its own by name, because ZeRO takes only those that it knows; the report has them."""
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path / "watch"))
    (tmp_path / "watch").mkdir()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    own = object()
    module: Any = SimpleNamespace(FusedAdam=own, DeepSpeedCPUAdam=own, build_shm_op=own, other=own)
    deepspeed.replace_compiled_adam(module)
    deepspeed.skip_shared_memory(module)
    if has_gpu:
        assert {*vars(module).values()} == {own}
        return
    weight = torch.nn.Parameter(torch.ones(2))
    for name in ("FusedAdam", "DeepSpeedCPUAdam"):
        optimizer = getattr(module, name)(
            model_params=[weight], lr=0.1, bias_correction=True, fp32_optimizer_states=True
        )
        assert type(optimizer).__name__ == name and isinstance(optimizer, torch.optim.AdamW)
    assert module.build_shm_op() is None and module.other is own
    assert {line.split(" ")[0] for line in list_replaced(str(tmp_path))} == {"FusedAdam", "DeepSpeedCPUAdam"}


UNUSED = """
import os, sys
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from attncheck.rehearsal.watcher.devices import allow_unused_parameters
allow_unused_parameters(torch.nn.parallel.distributed)
def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=2, **sizes))
    model.unused = torch.nn.Linear(4, 4)
    model.train().gradient_checkpointing_enable({"use_reentrant": True})
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(2):
        tokens = torch.arange(8).unsqueeze(0) + 8 * rank
        wrapped(input_ids=tokens, labels=tokens).loss.backward()
        gradients = [torch.zeros(32, 16) for _ in range(2)]
        dist.all_gather(gradients, model.get_input_embeddings().weight.grad.clone())
        assert torch.equal(*gradients)
        model.zero_grad()
if __name__ == "__main__":
    torch.multiprocessing.start_processes(train, nprocs=2, start_method="fork")
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("without_sharding", "ends"), [("1", True), ("", False)])
def test_gradients_are_averaged_although_a_trained_parameter_is_unused(
    without_sharding: str, ends: bool, tmp_path: Path
) -> None:
    """A tower without images has none in DeepSpeed either; a launch with DDP itself stays as it is, and fails."""
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(UNUSED)
    environ = {"PYTHONPATH": str(REPOSITORY), "ATTNCHECK_WITHOUT_SHARDING": without_sharding, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert (ended.returncode == 0) == ends, ended.stderr[-2000:]
