"""Lets the user's own script run on a CPU: what it would move to CUDA stays on the CPU, and nothing is quantised.

`torch.cuda.is_available()` still answers no, by which packages choose. Sources: torch 2.13 overrides.py
(`TorchFunctionMode`, which sees every function and method of tensors, as torch.device's context does),
amp/autocast_mode.py, nn/parallel/distributed.py (`device_ids` must be GPUs); transformers 5.24 modeling_utils.py
(`from_pretrained`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
from types import SimpleNamespace
from typing import Any

from .absent import note

QUANTISED = ("load_in_4bit", "load_in_8bit")
# The properties of a common GPU, an A100, for scripts that print its name or choose bfloat16 by it.
NAME, CAPABILITY, MEMORY = "NVIDIA A100-SXM4-80GB", (8, 0), 80 << 30
IDLE_CALLS = ("set_device", "synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated")


def keep_on_cpu(torch: Any) -> None:
    """Let tensors and modules stay on the CPU in a process without a GPU, whichever CUDA device they are sent to."""
    if torch.cuda.is_available():
        return

    class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined,unused-ignore]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if function is torch.Tensor.backward:  # our replacement called it, and would call it again
                return _go_backward(self, torch, *args, **options)
            if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                name_device("cuda")
                return args[0]
            if function is torch.Tensor.to:
                args = (args[0], *map(name_device, args[1:2]), *args[2:])
            if "device" in options:
                options["device"] = name_device(options["device"])
            return function(*args, **options)

    OnCpu().__enter__()
    properties = SimpleNamespace(name=NAME, major=8, minor=0, total_memory=MEMORY, multi_processor_count=108)
    for name in IDLE_CALLS:
        setattr(torch.cuda, name, lambda *arguments, **options: None)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda *arguments: NAME
    torch.cuda.get_device_capability = lambda *arguments: CAPABILITY
    torch.cuda.get_device_properties = lambda *arguments: properties
    torch.cuda.mem_get_info = lambda *arguments: (MEMORY, MEMORY)
    _change_options(torch.autocast, device_type=name_device)
    _change_options(torch.nn.parallel.DistributedDataParallel, device_ids=_drop, output_device=_drop)


def shard_on_cpu(module: Any) -> None:
    """Let FSDP (version 1) shard on the CPU if there is no GPU, and synchronise the ranks' weights there.

    torch 2.13 distributed/fsdp/_init_utils.py:1167 refuses weights on a CPU, which gloo can broadcast.
    """
    if os.environ.get("ATTNCHECK_WITHOUT_GPU") and not importlib.import_module("torch").cuda.is_available():
        _change_options(module.FullyShardedDataParallel, device_id=name_device)
        parts = importlib.import_module("torch.distributed.fsdp._init_utils")
        vars(parts)["_check_module_states_for_sync_module_states"] = _drop


def join_ranks_on_cpu(state: Any) -> None:
    """Let accelerate's ranks form a group on CPUs; otherwise each is alone (1.15.0 state.py, `_prepare_backend`)."""
    _change_options(
        state.PartialState, cpu=lambda value: value or not importlib.import_module("torch").cuda.is_available()
    )


def make_mesh_on_cpu(device_mesh: Any) -> None:
    """Let a mesh of CUDA devices be one of CPUs."""
    original = device_mesh.init_device_mesh

    @functools.wraps(original)
    def init_device_mesh(device_type: str, *arguments: Any, **options: Any) -> Any:
        return original(name_device(device_type), *arguments, **options)

    device_mesh.init_device_mesh = init_device_mesh


def _go_backward(
    mode: Any,
    torch: Any,
    loss: Any,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    with mode:
        torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)


def keep_off_absent_devices(modeling_utils: Any) -> None:
    """Let models be loaded on the CPU if a trainer names a GPU (axolotl 0.19.0 utils/config, line 230), unquantised."""
    import torch

    if torch.cuda.is_available():
        return
    model_class = modeling_utils.PreTrainedModel
    original = vars(model_class)["from_pretrained"].__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        places = options.get("device_map")
        if isinstance(places, dict):
            options["device_map"] = {name: name_device(device) for name, device in places.items()}
        elif places is not None:
            options["device_map"] = name_device(places)
        configuration = options.get("quantization_config")
        given = [name for name in QUANTISED if options.pop(name, False) or getattr(configuration, name, False)]
        for name in given:
            options.pop("quantization_config", None)
            note(os.environ["ATTNCHECK_WATCH"], "gpu", name)
        return original(cls, *arguments, **options)

    model_class.from_pretrained = classmethod(from_pretrained)


def configure_without_package(quantization_config: Any) -> None:
    """Let a script describe a quantisation whose package is missing, because nothing is quantised without a GPU.

    transformers 4.57.3 utils/quantization_config.py:568 reads the version of bitsandbytes.
    """
    check = quantization_config.BitsAndBytesConfig.post_init

    def check_if_installed(self: Any) -> None:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            check(self)

    quantization_config.BitsAndBytesConfig.post_init = check_if_installed


def hold_in_float32(accelerator: Any) -> None:
    """Hold trained weights in float32 if FSDP or DeepSpeed is left out, as these do (accelerate 1.15.0, line 1988).

    Weights in bfloat16 without mixed precision stay as they are.
    """
    original = accelerator.Accelerator.prepare_model

    @functools.wraps(original)
    def prepare_model(self: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        import torch

        low = (torch.float16, *((torch.bfloat16,) if self.mixed_precision != "no" else ()))
        for parameter in model.parameters() if os.environ.get("ATTNCHECK_WITHOUT_SHARDING") else ():
            if parameter.requires_grad and parameter.dtype in low:
                parameter.data = parameter.data.float()
                note(os.environ["ATTNCHECK_WATCH"], "float32", "weights")
        return original(self, model, *arguments, **options)

    accelerator.Accelerator.prepare_model = prepare_model


def is_cuda(value: Any) -> bool:
    """Return whether a value names a CUDA device: a text or torch's object."""
    return (isinstance(value, str) and value.startswith("cuda")) or getattr(value, "type", None) == "cuda"


def name_device(value: Any) -> Any:
    """Return the CPU for a CUDA device or the number of one, any other device unchanged."""
    if not is_cuda(value) and type(value) is not int:
        return value
    note(os.environ["ATTNCHECK_WATCH"], "cuda", "CUDA")
    return "cpu"


def _drop(value: Any) -> None:
    return None


def _change_options(kind: Any, **changes: Any) -> None:
    """Let a class be made with changed arguments."""
    import inspect

    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*arguments: Any, **options: Any) -> None:
        bound = signature.bind(*arguments, **options)
        for name, change in changes.items():  # only these: other patches set arguments by their names
            bound.arguments[name] = change(bound.arguments.get(name, signature.parameters[name].default))
        original(*bound.args, **bound.kwargs)

    kind.__init__ = initialize


def allow_unused_parameters(module: Any) -> None:
    """Let DDP have parameters that a step does not use if it replaces DeepSpeed or FSDP, which allow them.

    With reentrant checkpoints it would mark parameters twice: torch 2.13 nn/parallel/distributed.py. These become
    others, which compute the same if the first layer's input has a gradient. transformers 4.57.3 trainer.py:2201 looks
    for unused parameters in a model with adapters anyway.
    """
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def initialize(wrapper: Any, model: Any, *arguments: Any, **options: Any) -> None:
        if os.environ.get("ATTNCHECK_WITHOUT_SHARDING"):
            reentrant = [module for module in model.modules() if _is_reentrant(module)]
            functions = [getattr(module, "_gradient_checkpointing_func", None) for module in reentrant]
            is_ours = os.environ.get("ATTNCHECK_DRIVER") != "trl" and _has_gradients_of_inputs(model)
            if is_ours and all(isinstance(own, functools.partial) for own in functions):
                for module in reentrant:
                    module._gradient_checkpointing_func.keywords["use_reentrant"] = False
                reentrant = []
            options["find_unused_parameters"] = not reentrant
        original(wrapper, model, *arguments, **options)

    module.DistributedDataParallel.__init__ = initialize


def _has_gradients_of_inputs(model: Any) -> bool:
    """Return whether a model's embeddings are trained, or their output has a gradient anyway.

    transformers 4.57.3 and 5.17.0 modeling_utils.py (`enable_input_require_grads`).
    """
    models = [model, *(own for own in model.modules() if hasattr(own, "get_input_embeddings"))]
    if any(hasattr(own, name) for own in models for name in ("_require_grads_hook", "_require_grads_hooks")):
        return True
    embeddings = getattr(models[-1], "get_input_embeddings", lambda: None)()
    return embeddings is not None and all(weight.requires_grad for weight in embeddings.parameters())


def _is_reentrant(module: Any) -> bool:
    """Return whether a module's checkpoints are reentrant, torch's default, or will be.

    TRL 0.24.0 models/utils.py (`unwrap_model_for_generation`) enables them again without the launch's options.
    """
    options = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", None) or {}
    return bool(
        getattr(module, "gradient_checkpointing", False)
        and (os.environ.get("ATTNCHECK_DRIVER") == "trl" or options.get("use_reentrant", True))
    )
