"""Installs the recorder in a training's functions: loading models, backward passes, optimiser steps.

Modules are patched right after they are imported, and only if the trainer imports them. Sources: torch 2.13
`torch/optim/optimizer.py` (`register_optimizer_step_pre_hook`, for all optimisers since 2.1), `torch/_tensor.py`
(`Tensor.backward`); transformers 5.17 `modeling_utils.py` (every loaded or new model passes through `from_pretrained`
or `_from_config`; the same in 4.x); peft 0.18 `tuners/tuners_utils.py` (`BaseTuner.forward` calls the model's `forward`
without its hooks; 0.21 calls the model, including hooks).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from . import absent, lifeline, outside, own_rows, remote_code, waiting
from .adapters import watch_adapters, watch_loading
from .attention import watch_padding
from .batches import watch_epochs
from .checkpoints import watch_checkpoints, watch_kept
from .continuing import watch_interruptions, watch_skipping, watch_start
from .deepening import ask_deeper
from .deepspeed import replace_compiled_adam, skip_shared_memory, watch_engine
from .describe import describe_prompt
from .devices import (
    allow_unused_parameters,
    configure_without_package,
    hold_in_float32,
    join_ranks_on_cpu,
    keep_off_absent_devices,
    keep_on_cpu,
    make_mesh_on_cpu,
)
from .effects import keep_given, watch_trainer
from .emulation import allow_hub_kernels, allow_in_import_utils, allow_in_modeling_utils, allow_in_torch
from .evaluations import note_evaluation
from .fsdp import watch_fsdp
from .hastening import watch_trainings
from .modules import call_before
from .objective import watch_divergence, watch_loop, watch_terms
from .optimizer import find_lost_rates
from .recorder import Recorder
from .relations import ask_collator, ask_metrics, report
from .saved import SavedModels
from .script_code import note_loss_settings, note_trainer, watch_added_tokens, watch_prompts
from .stand_ins import (
    answer_keys,
    answer_removed,
    choose_model_type,
    choose_template,
    cut_settings,
    find_frames,
    find_pictures,
    find_required_files,
    find_rows,
    find_small_model,
    find_tokens,
    leave_early_stopping,
    leave_kernels,
    leave_login,
    leave_options,
    leave_unknown,
    leave_unknown_keys,
    list_rows,
    load_with_head,
    load_with_known,
    name_layers,
    number_markers,
    open_rows,
    read_lines_as_array,
    seed_with_defaults,
    take_known,
    take_known_columns,
    take_known_template,
    use_gloo_without_gpu,
)
from .takeover import (
    GENERATION,
    do_not_start_ray,
    find_ignored_data,
    run_in_process,
    stand_in_for,
    start_in_process,
    take_over_easyr1,
    take_over_hydra,
    take_over_openrlhf,
    take_over_ray,
    take_over_verl,
)
from .towers import cut_large, is_built, make_adapters, note_kind
from .verl import find_engine, register_cpu, stand_on_cpu, use_gloo

# In torch.nn.utils.clip_grad (2.13); frameworks that shard call its parts (verl 0.9.1 utils/fsdp_utils.py).
CLIPPING = ("clip_grad_norm_", "clip_grads_with_norm_", "_clip_grads_with_norm_", "get_total_norm", "_get_total_norm")
LIMITS = {"clip_grad_norm_": "max_norm", "clip_grads_with_norm_": "max_norm", "clip_grad_value_": "clip_value"}
WEIGHTS_OF_A_MODEL = ("from_pretrained", "_from_config")


def install(folder: str) -> None:
    """Record this process's training into `folder`, once it imports torch and transformers."""
    lifeline.install()
    waiting.install(folder)
    if os.environ.get("ATTNCHECK_FOLDER"):
        outside.install(os.environ["ATTNCHECK_FOLDER"])
    recorder = Recorder(folder)
    saved = SavedModels(recorder)
    callbacks: dict[str, Callable[[Any], None]] = {
        "torch": functools.partial(_patch_torch, recorder),
        "transformers.modeling_utils": functools.partial(_patch_transformers, recorder, saved),
        "accelerate.commands.launch": run_in_process,
        "axolotl.cli.utils.train": start_in_process,
        "deepspeed.launcher.runner": start_in_process,
        "deepspeed.launcher.launch": start_in_process,
        "swift.cli.main": start_in_process,
        "transformers.trainer": functools.partial(_patch_trainer, recorder),
        "transformers.utils.import_utils": allow_in_import_utils,
        "transformers.integrations.hub_kernels": allow_hub_kernels,
        "peft.tuners.tuners_utils": functools.partial(_patch_peft, recorder),
        "peft.peft_model": call_before(
            functools.partial(watch_loading, recorder), lambda module: saved.watch(module.PeftModel), 1
        ),
        "accelerate.data_loader": functools.partial(watch_skipping, recorder),
        "peft.mapping": functools.partial(watch_adapters, recorder),
        "peft.mapping_func": functools.partial(watch_adapters, recorder),  # since 0.15
        "torch.distributed.fsdp.fully_sharded_data_parallel": functools.partial(watch_fsdp, recorder.take_gradients),
        "deepspeed.ops.adam.fused_adam": replace_compiled_adam,
        "deepspeed.ops.adam.cpu_adam": replace_compiled_adam,
        "deepspeed.comm.torch": skip_shared_memory,
        "deepspeed.runtime.engine": functools.partial(watch_engine, recorder.take_gradients),
        "torch.nn.parallel.data_parallel": functools.partial(note_data_parallel, folder),
        "swift.template": number_markers,
        "swift.llm.template.base": number_markers,  # before 4.0
        "swift.model.model_meta": choose_model_type,
        "swift.llm.model.register": choose_model_type,
        "swift.template.register": choose_template,
        "llamafactory.data.template": take_known_template,
        "transformers.modeling_layers": name_layers,
        "transformers.trainer_callback": leave_early_stopping,
        "liger_kernel.transformers": leave_kernels,
        "liger_kernel.chunked_loss": leave_kernels,
    }
    if os.environ.get("ATTNCHECK_LABELS"):
        gc.disable()  # of one step little would be collected
        gc.collect = lambda generation=2: 0  # axolotl's packing and its models' loaders collect, too
    else:
        callbacks["torch.utils.data.dataloader"] = watch_epochs(folder, functools.partial(ask_collator, recorder))
    if not os.environ.get("ATTNCHECK_REMOTE_CODE"):
        callbacks["transformers.dynamic_module_utils"] = remote_code.refuse
    if os.environ.get("ATTNCHECK_WITHOUT_CUDA"):
        callbacks["verl.plugin.platform.platform_cuda"] = register_cpu
        callbacks["verl.utils.device"] = stand_on_cpu
        callbacks["verl.workers.engine.base"] = find_engine
        callbacks["verl.utils.distributed"] = use_gloo
    if os.environ.get("ATTNCHECK_ROWS"):
        callbacks["transformers.utils.hub"] = find_small_model
        callbacks["transformers.configuration_utils"] = note_kind
        callbacks["transformers.tokenization_utils_base"] = _watch_tokenizers
        callbacks["peft.peft_model"] = call_before(callbacks["peft.peft_model"], make_adapters, 1)
        callbacks["datasets.load"] = find_rows
        callbacks["datasets.arrow_dataset"] = take_known_columns
        callbacks["pandas"] = find_frames
        callbacks["PIL.Image"] = find_pictures
        callbacks["numpy"] = find_tokens
        callbacks["huggingface_hub._login"] = leave_login
        callbacks["transformers.trainer_utils"] = seed_with_defaults
        callbacks["trl.trainer.model_config"] = lambda module: answer_removed(module.ModelConfig)
        callbacks["trl.scripts.utils"] = _patch_trl_scripts
        callbacks["transformers.hf_argparser"] = callbacks["trl.scripts._hf_argparser"] = leave_unknown
        own_rows.begin_parsing(argparse.ArgumentParser)
        loaders = callbacks.get("torch.utils.data.dataloader", own_rows.watch_loaders)
        callbacks["torch.utils.data.dataloader"] = call_before(loaders, own_rows.watch_loaders, 1)
        open_rows()
        find_required_files()
        list_rows()
        answer_keys()
        leave_options()
    if os.environ.get("ATTNCHECK_HEAD"):
        callbacks["transformers.models.auto.modeling_auto"] = load_with_head
    if os.environ.get("ATTNCHECK_LINES"):
        read_lines_as_array()
    if {"ATTNCHECK_SETTINGS", "ATTNCHECK_ROWS", "ATTNCHECK_FORK", "ATTNCHECK_STATED"} & os.environ.keys():
        callbacks["transformers.training_args"] = _patch_training_args
    if os.environ.get("ATTNCHECK_WITHOUT_GPU"):
        callbacks["torch.distributed.distributed_c10d"] = use_gloo_without_gpu
        callbacks["torch.distributed.device_mesh"] = make_mesh_on_cpu
        callbacks["accelerate.accelerator"] = hold_in_float32
        callbacks["accelerate.state"] = join_ranks_on_cpu
        callbacks["torch.nn.parallel.distributed"] = allow_unused_parameters
        callbacks["transformers.utils.quantization_config"] = configure_without_package
    driver = os.environ.get("ATTNCHECK_DRIVER")  # for the process that the launch starts, not for the ranks
    if driver in ("verl", "verl_actor"):
        callbacks["hydra._internal.config_repository"] = find_ignored_data
    if driver == "verl":
        callbacks["verl.utils.config"] = take_over_verl
        callbacks["hydra.core.utils"] = take_over_ray
    if driver == "verl_actor":
        callbacks["hydra.core.utils"] = take_over_hydra
    if driver == "easyr1":
        callbacks["verl.trainer.config"] = take_over_easyr1
    if driver == "openrlhf":
        callbacks["openrlhf.utils.utils"] = take_over_openrlhf
        callbacks["ray"] = do_not_start_ray
    if driver == "trl":
        callbacks["transformers.generation.utils"] = functools.partial(_drive_trl, "replace_generation")
        for name in ("grpo", "rloo"):
            callbacks[f"trl.trainer.{name}_trainer"] = functools.partial(_drive_trl, "take_over")
        for name in ("swift.rlhf_trainers", "swift.trainers.rlhf_trainer"):  # since 4.0, before
            callbacks[f"{name}.grpo_trainer"] = functools.partial(_drive_trl, "reward_ms_swift")
    for framework, packages in GENERATION.items():
        callbacks[framework] = functools.partial(stand_in_for, packages)
    for name in callbacks.keys() & sys.modules.keys():  # imported before us, by a .pth file
        callbacks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(callbacks))
    absent.install(folder)
    atexit.register(recorder.end_process)


class _AfterImport(MetaPathFinder):
    """Calls a function right after a module's code has run."""

    def __init__(self, callbacks: dict[str, Callable[[Any], None]]) -> None:
        self.callbacks = callbacks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the other finders' spec, with the callback added to its loader; None for other modules."""
        callback = self.callbacks.get(
            name
        )  # requested more often than imported, because packages search with find_spec
        if callback is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Following(spec.loader, callback)
                return spec
        return None


class _Following(Loader):
    """A loader that passes the loaded module to a callback, and otherwise behaves like the original loader."""

    def __init__(self, loader: Any, callback: Callable[[Any], None]) -> None:
        self._loader, self._callback = loader, callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        """Return what the loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module's code, then the callback."""
        self._loader.exec_module(module)
        module.__loader__ = module.__spec__.loader = self._loader
        self._callback(module)


def _patch_torch(recorder: Recorder, torch: Any) -> None:
    """Record losses when they are differentiated, and gradients before they are clipped and applied."""
    from torch.nn import utils
    from torch.optim import optimizer

    allow_in_torch(torch)
    # A head without weights in the checkpoint is drawn before most trainers set a seed.
    torch.default_generator.manual_seed(  # not a GPU's, whose own seed is the same on all ranks
        int(os.environ.get("ATTNCHECK_SEED", 0)) + int(os.environ.get("RANK") or 0)
    )
    if os.environ.get("ATTNCHECK_WITHOUT_GPU"):
        keep_on_cpu(torch)
    watch_divergence(recorder, torch.nn.functional)
    watch_padding(recorder, torch.nn.MultiheadAttention)
    original_backward, judge_terms = torch.Tensor.backward, watch_loop(recorder)

    @functools.wraps(original_backward)
    def backward(self: Any, *arguments: Any, **options: Any) -> Any:
        recorder.add_loss(self)
        judge_terms(self, sys._getframe(1))
        result = original_backward(self, *arguments, **options)
        recorder.keep_backward()
        return result

    torch.Tensor.backward = backward
    modules: tuple[Any, ...] = (utils, utils.clip_grad)
    for module in modules:
        for name in CLIPPING:
            if hasattr(module, name):
                setattr(module, name, call_before(getattr(module, name), recorder.take_gradients))
        for name, limit in LIMITS.items():
            if hasattr(module, name):
                setattr(module, name, _note_clipping(recorder, getattr(module, name), name, limit))
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        kind.zero_grad = call_before(kind.zero_grad, recorder.note_zeroing)
    torch.nn.Module.eval = call_before(torch.nn.Module.eval, recorder.note_evaluation)
    report_own = functools.partial(report, recorder.folder)
    watch_kept(torch.nn.Module, optimizer.register_optimizer_step_post_hook, report_own)
    watch_checkpoints(torch.nn.Module)  # after the other, which is called by it
    scheduler = torch.optim.lr_scheduler.LRScheduler
    step = call_before(scheduler.step, functools.partial(_report_lost_rates, report_own), 1)
    scheduler.step = call_before(step, recorder.note_schedule, 1)
    optimizer.register_optimizer_step_pre_hook(lambda *arguments: enter_optimizer(recorder, arguments[0]))
    optimizer.register_optimizer_step_post_hook(lambda *arguments: recorder.leave_optimizer(arguments[0]))


def _report_lost_rates(report_own: Callable[..., None], scheduler: Any) -> None:
    """Report that a schedule replaces the groups' own rates; it begins with a step."""
    with contextlib.suppress(Exception):
        if scheduler.last_epoch < 0 and (text := find_lost_rates(scheduler)):
            report_own("update", warnings=[text])


def enter_optimizer(recorder: Recorder, optimizer: Any) -> None:
    """Record the gradients if nothing was clipped, then the optimiser."""
    recorder.take_gradients()
    recorder.enter_optimizer(optimizer)


def _note_clipping(recorder: Recorder, clip: Callable[..., Any], name: str, limit: str) -> Callable[..., Any]:
    @functools.wraps(clip)
    def call(parameters: Any, *arguments: Any, **options: Any) -> Any:
        import torch

        recorder.take_gradients()
        parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
        is_given = name == "clip_grads_with_norm_"  # its second argument is the norm itself, perhaps of other gradients
        kind = 0.0 if is_given else float(arguments[1] if len(arguments) > 1 else options.get("norm_type", 2.0))
        recorder.note_clipping(name, float(arguments[0] if arguments else options[limit]), parameters, kind)
        return clip(parameters, *arguments, **options)

    return call


def watch_logs(recorder: Recorder, trainer: Any) -> None:
    """Record the logs of transformers' Trainer (5.17 trainer.py, 4.x: `log(logs, …)`, after a step)."""
    original = trainer.Trainer.log

    @functools.wraps(original)
    def log(self: Any, logs: Any, *arguments: Any, **options: Any) -> Any:
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, (int, float))}
        recorder.logs.append({**numbers, "step": int(self.state.global_step)})
        return original(self, logs, *arguments, **options)

    trainer.Trainer.log = log


def watch_training(trainer: Any, note: Callable[[Any], None]) -> None:
    """Call a function with each of transformers' Trainers before it trains."""
    original = trainer.Trainer.train

    @functools.wraps(original)
    def train(self: Any, *arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(Exception):  # the trainer continues without it
            note(self)
        return original(self, *arguments, **options)

    trainer.Trainer.train = train


def note_prompt(folder: str, trainer: Any) -> None:
    """Write `prompt.json`, the end of a prompt by the tokenizer that a trainer trains with."""
    tokenizer = getattr(trainer, "processing_class", None) or getattr(trainer, "tokenizer", None)
    with open(os.path.join(folder, "prompt.json"), "w") as stream:
        json.dump(describe_prompt(tokenizer), stream)


def _watch_tokenizers(module: Any) -> None:
    watch_added_tokens(module.PreTrainedTokenizerBase)
    watch_prompts(module.PreTrainedTokenizerBase)


def _drive_trl(name: str, module: Any) -> None:
    """Call a function of TRL's driver with a module of the training process."""
    getattr(importlib.import_module("attncheck_drivers.trl"), name)(module)


def note_data_parallel(folder: str, module: Any) -> None:
    """Write `data-parallel`, the number of GPUs, if DataParallel's threads copy a model to several.

    torch 2.13 nn/parallel/replicate.py: the copies have no parameters of their own, so they cannot be recorded.
    transformers 5.17 trainer.py:2548 does this if one process has several GPUs.
    """
    original = module.DataParallel.__init__

    @functools.wraps(original)
    def initialize(wrapper: Any, *arguments: Any, **options: Any) -> None:
        original(wrapper, *arguments, **options)
        if len(wrapper.device_ids) > 1:
            with open(os.path.join(folder, "data-parallel"), "w") as stream:
                stream.write(str(len(wrapper.device_ids)))

    module.DataParallel.__init__ = initialize


def _patch_trl_scripts(utils: Any) -> None:
    """Answer scripts of another release of TRL."""
    answer_removed(utils.ScriptArguments)
    leave_unknown_keys(utils)


def _patch_training_args(training_args: Any) -> None:
    """Change the settings that a script passes as literals."""
    if {"ATTNCHECK_SETTINGS", "ATTNCHECK_ROWS"} & os.environ.keys():
        cut_settings(training_args)
    if {"ATTNCHECK_ROWS", "ATTNCHECK_FORK"} & os.environ.keys():  # written for another release
        take_known(training_args.TrainingArguments)
        answer_removed(training_args.TrainingArguments)
    keep_given(training_args.TrainingArguments)


def _patch_trainer(recorder: Recorder, trainer: Any) -> None:
    """Record what a trainer logs, and the end of its prompts if labels are read."""
    watch_interruptions(recorder, trainer)
    watch_logs(recorder, trainer)
    watch_training(trainer, note_trainer)
    watch_training(trainer, functools.partial(watch_terms, recorder))
    watch_training(trainer, lambda trainer: gc.freeze())  # accelerate and axolotl collect: long after their imports
    watch_training(trainer, functools.partial(note_evaluation, recorder))
    watch_trainings(recorder, trainer)
    if os.environ.get("ATTNCHECK_ROWS"):
        watch_training(trainer, note_loss_settings)
        watch_training(trainer, functools.partial(ask_metrics, recorder))
    if os.environ.get("ATTNCHECK_LABELS"):
        watch_training(trainer, functools.partial(note_prompt, recorder.folder))
    if {"ATTNCHECK_ROWS", "ATTNCHECK_FORK"} & os.environ.keys():
        take_known(trainer.Trainer)
    watch_trainer(recorder, trainer.Trainer)
    if os.environ.get("ATTNCHECK_DRIVER") == "trl":
        _drive_trl("take_over_copies", trainer)


def _patch_transformers(recorder: Recorder, saved: SavedModels, modeling_utils: Any) -> None:
    """Watch every loaded or new model, and what is saved of it."""
    import torch
    from torch.optim import optimizer

    if os.environ.get("ATTNCHECK_EMULATED"):
        allow_in_modeling_utils(modeling_utils)
    keep_off_absent_devices(modeling_utils)
    model_class = modeling_utils.PreTrainedModel
    if os.environ.get("ATTNCHECK_ROWS"):
        load_with_known(model_class)
        model_class.__init__ = call_before(model_class.__init__, cut_large, 2)

    def watch(model: Any) -> None:
        if os.environ.get("ATTNCHECK_NO_CACHE"):  # set when a fix without the cache is tried
            model.config.use_cache = False
        recorder.watch(model)

    saved.watch(model_class)
    saved.watch_states(torch)
    optimizer.register_optimizer_step_pre_hook(saved.keep_first)
    end_building = model_class.post_init

    @functools.wraps(end_building)
    def post_init(model: Any) -> None:
        end_building(model)
        if is_built(model):
            recorder.built.append(model)
            watch(model)

    model_class.post_init = post_init
    watch_start(recorder, model_class, WEIGHTS_OF_A_MODEL)
    load = vars(model_class)["from_pretrained"].__func__
    if os.environ.get("ATTNCHECK_ROWS"):
        model_class.from_pretrained = classmethod(_pass_result(load, functools.partial(ask_deeper, recorder)))
    for name in WEIGHTS_OF_A_MODEL:
        setattr(model_class, name, classmethod(_pass_result(vars(model_class)[name].__func__, watch)))


def _patch_peft(recorder: Recorder, tuners_utils: Any) -> None:
    """Record the calls of a model that is wrapped by an adapter."""
    original = tuners_utils.BaseTuner.forward

    @functools.wraps(original)
    def forward(tuner: Any, *arguments: Any, **options: Any) -> Any:
        is_watched = any(tuner.model is model for model in recorder.models)
        if is_watched:
            recorder.enter_model(tuner.model, arguments, options)
            recorder.adapted = tuner.model
        try:
            output = original(tuner, *arguments, **options)
        finally:
            recorder.adapted = None
        if is_watched:
            recorder.leave_model(tuner.model, arguments, options, output)
        return output

    tuners_utils.BaseTuner.forward = forward


def _pass_result(function: Callable[..., Any], callback: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        callback(result[0] if isinstance(result, tuple) else result)
        return result

    return call
