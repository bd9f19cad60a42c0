"""Scales down a launch of verl's reinforcement learning to the actor's update, and determines its objective.

The launch's own command composes its configuration, and verl validates it. Then `attncheck.rehearsal.drivers.verl`
replaces Ray, the rollout engine and the reward: it builds verl's own actor and passes it rollouts. Before 0.8.0,
next to the launch or installed, the actor is in `workers/actor/dp_actor.py`, although 0.7 has both: its own program
composes the configuration, and `drivers.verl_actor` continues (0.1 to 0.7.1 divide the loss by the number of
micro-batches, or by their share of the rows, so "token-mean" is each micro-batch's mean: workers/actor/dp_actor.py).

Sources, verl 0.9.1: trainer/main_ppo.py; trainer/config/ppo_trainer.yaml, actor/actor.yaml, rollout/rollout.yaml;
workers/utils/losses.py:61 (`ppo_loss`); trainer/ppo/core_algos.py:1140 (`agg_loss`: over the tokens or the responses of
the mini-batch of all ranks, for any micro-batches; workers/engine/fsdp/transformer_impl.py:724 counts them) and :1286,
:1546, :1708, :2048 (the losses); trainer/ppo/utils.py (`need_critic`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace

from attncheck.lint.fields import DROP, NOWHERE, Job, Launch, Setting, is_at_least
from attncheck.lint.fields.cutting import (
    LEARNING_RATE,
    WITHOUT_CUDA,
    JobCut,
    Materials,
    Normalisation,
    Objective,
    PolicyGradient,
    cut_attention,
    get_setting,
    is_number,
    is_on,
)
from attncheck.lint.frameworks.verl.given import starts_main_ppo
from attncheck.lint.frameworks.verl.roles import ACTOR, MODEL
from attncheck.lint.frameworks.verl.sft_sizes import keep_hydra_in

SINCE = "0.9.1"  # the release whose workers were read
WORKERS, OLD_ACTOR = "workers/engine_workers.py", "workers/actor/dp_actor.py"  # the code that a rehearsal drives
OLD_UNTIL = "0.8.0"  # the first release whose launches run the engine's workers
ROLLOUT = "actor_rollout_ref.rollout"
ROWS = 6  # responses in a rank's step: micro-batches of different lengths
TOKENS = 128  # in a micro-batch, if its size is given in tokens; no rollout is longer
LENGTH = 64  # maximum length of a prompt, and of a response
OLD_DEVICE = {"ATTNCHECK_VERL_DEVICE": "cpu", "ATTNCHECK_WITHOUT_GPU": "1", "TORCHDYNAMO_DISABLE": "1"}
CPU_PLATFORM = {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}  # the watcher registers this platform
RATIO_LOSSES = ("vanilla", "gspo")  # losses of −advantage × ratio; a clipped ratio is 1 at the first step
LOG_LOSSES = ("gpg", "cispo")  # losses of −advantage × log p
AGGREGATIONS: Mapping[str, Normalisation] = {
    "token-mean": "step_tokens",
    "token-sum": "step_tokens",
    "seq-mean-token-sum": "document_sums",
    "seq-mean-token-mean": "document_tokens",
    "seq-mean-token-sum-norm": "document_sums",
}
LEFT_OUT = (
    *(f"{ACTOR}.ppo_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size", f"{ACTOR}.optim.warmup_style"),
    *(f"{ACTOR}.optim.lr_warmup_steps_ratio", f"{MODEL}.tokenizer_path", f"{MODEL}.hf_config_path"),
    *(f"{MODEL}.use_shm", f"{MODEL}.lora_adapter_path", "trainer.rollout_data_dir", "trainer.validation_data_dir"),
    *("global_profiler.tool", "global_profiler.finish_hook_cmd"),
)
GPU_SETTINGS = {  # settings that are switched off if there is no GPU, and their descriptions
    f"{MODEL}.use_liger": "liger-kernel",
    f"{MODEL}.use_fused_kernels": "verl's fused kernels",
    f"{MODEL}.enable_activation_offload": "verl's activation offload",  # to pinned memory
    f"{ACTOR}.fsdp_config.param_offload": "FSDP's parameter offload",
    f"{ACTOR}.fsdp_config.optimizer_offload": "FSDP's optimiser offload",
    f"{ACTOR}.fsdp_config.offload_policy": "FSDP's offload",
}
MAIN = "verl.trainer.main_ppo"
STANDS_FOR = "only verl's actor is updated, with synthetic rollouts: no rollout engine, reward or Ray"


def cut_policy(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `verl.trainer.main_ppo` or a similar main, or why it is not rehearsed."""
    tree = find_tree(launch)
    package = os.path.join(tree or "", "verl")
    has_old, has_new = (os.path.isfile(os.path.join(package, file)) for file in (OLD_ACTOR, WORKERS))
    is_old = not is_at_least(job.version, OLD_UNTIL) if tree is None or (has_old and has_new) else has_old
    if tree is not None and not (has_old or has_new):
        return f"the verl next to the launch has neither {WORKERS} nor {OLD_ACTOR}, which a rehearsal drives"
    given, job = {setting.name for setting in job.settings}, _complete(launch, job)
    refusal = _refuse(job, is_old or tree is not None)
    if refusal:
        return refusal
    attention = cut_attention(job, materials)
    off = [] if materials.uses_gpu else [name for name in GPU_SETTINGS if is_on(job, name)]
    sets = {
        **attention.sets,
        **dict.fromkeys(LEFT_OUT, DROP),
        **dict.fromkeys(off, "False"),
        **_cut_sizes(job, materials),
    }
    program = launch.words[0].text if launch.words else MAIN
    module = program.removesuffix(".py").replace("/", ".")
    has_own = is_old and os.path.isfile(os.path.join(tree or "", f"{module.replace('.', '/')}.py"))
    if module == MAIN or has_own or starts_main_ppo(launch):
        program = ""
    if not launch.words:
        defaults = get_setting(job, "defaults") or ""
        sets["defaults"] = defaults if "ppo_trainer" in defaults else '["ppo_trainer", "_self_"]'
    other = f"{program} is not run; {MAIN} replaces it, with the settings that it supports"
    remarks = [STANDS_FOR, *([other] if program else []), *_list_terms_left_out(job), *attention.remarks]
    remarks += [f"{GPU_SETTINGS[name]} ({name}) needs a GPU, and this machine has none: switched off" for name in off]
    environ = {} if materials.uses_gpu else {**WITHOUT_CUDA, **CPU_PLATFORM}
    if is_old:
        values = {name: value for name, value in sets.items() if value != DROP and not name.startswith("hydra.")}
        sets = {name: value for name, value in sets.items() if name in given or name.startswith("hydra.")}
        environ = {} if materials.uses_gpu else {**WITHOUT_CUDA, **OLD_DEVICE}
        environ |= {"ATTNCHECK_OVERRIDES": json.dumps(values)}
        if tree is not None:
            environ["PYTHONPATH"] = os.path.abspath(tree)
        remarks.append("the actor runs without its worker: DDP replaces FSDP, and Ulysses is left out")
    elif not materials.uses_gpu:
        sets |= {"trainer.device": "cpu", f"{ACTOR}.strategy": "fsdp2", f"{ACTOR}.use_torch_compile": "False"}
        sets[f"{ACTOR}.fsdp_config.use_torch_compile"] = "False"  # for the entropy; it needs a compiler
        if get_setting(job, f"{ACTOR}.strategy") != "fsdp2":
            remarks.append(f"FSDP1 needs a GPU, and this machine has none: {ACTOR}.strategy=fsdp2 replaces it")
    return JobCut(
        sets,
        "messages",
        _define_objective(job, is_old),
        environ=environ,
        command=("python", "-m", MAIN, "--config-dir", "{folder}", "--config-name", "{stem}"),
        program=MAIN if program and launch.words else "",
        emulates_flash_attn=not materials.uses_gpu,  # flash_attention_2 is the engine's default
        driver="verl_actor" if is_old else "verl",
        whole_rows="the actor's worker is not run" if is_old else "",
        remarks=tuple(remarks),
    )


def find_tree(launch: Launch, package: str = "verl", file: str = "__init__.py") -> str | None:
    """Return the folder of the verl next to the launch, which Python imports before the installed one; or None.

    It may be in a folder of the same name, which the user installs: verl/verl.
    """
    program = launch.program.path if launch.program is not None else ""
    own = os.path.join(launch.folder, program.partition(f"{package}/")[0])
    above, folders = os.path.dirname(launch.source.name), [launch.folder, own, ""]
    while above and not os.path.relpath(above).startswith(".."):
        folders.append(above)
        above = os.path.dirname(above)
    for folder in dict.fromkeys(folders):
        for place in (folder, os.path.join(folder, package)):
            if os.path.isfile(os.path.join(place, package, file)) and "site-packages" not in place:
                return place
    return None


def _complete(launch: Launch, job: Job) -> Job:
    """Return a job that also has the values of its tree's own configuration, which its settings replace."""
    options = launch.program.options if launch.program is not None and launch.program.style == "hydra" else {}
    values = {name: str(option.default) for name, option in options.items() if option.default is not None}
    own = (Setting(name, value, job.location, NOWHERE) for name, value in values.items() if "${" not in value)
    return replace(job, settings=(*own, *job.settings))


def _refuse(job: Job, is_known: bool) -> str:
    """Return why the actor's update is not rehearsed; "" if it is. `is_known`: its code is, in any release."""
    if not (is_known or is_at_least(job.version, SINCE)):
        return f"verl {job.version}'s actor is not rehearsed; only {SINCE} and later are"
    strategy = get_setting(job, f"{ACTOR}.strategy") or "fsdp"
    if not strategy.startswith("fsdp") or (get_setting(job, "model_engine") or "dp") != "dp":
        return f"verl's engine {get_setting(job, 'model_engine') or strategy} is not rehearsed; only fsdp is"
    loss = read_value(job, f"{ACTOR}.policy_loss.loss_mode", "vanilla")
    if loss not in (*RATIO_LOSSES, *LOG_LOSSES):
        return f"verl's policy loss {loss} is not rehearsed yet: {', '.join((*RATIO_LOSSES, *LOG_LOSSES))} are"
    if is_on(job, "algorithm.rollout_correction.bypass_mode") or is_on(job, "distillation.enabled"):
        return "verl's bypass of old_log_probs and its distillation are not rehearsed yet"
    aggregation = read_value(job, f"{ACTOR}.loss_agg_mode", "token-mean")
    if aggregation == "seq-mean-token-sum-norm" and not read_value(job, f"{ACTOR}.loss_scale_factor", ""):
        return (
            "seq-mean-token-sum-norm is rehearsed only with a loss_scale_factor: without one, the "
            "loss depends on the batch's width"
        )
    for name in (f"{ROLLOUT}.temperature", f"{ACTOR}.entropy_coeff", f"{ACTOR}.loss_scale_factor"):
        if not is_number(read_value(job, name, "1")):
            return f"{name}={read_value(job, name, '')}: known only at run time, so the loss cannot be rehearsed"
    return "" if aggregation in AGGREGATIONS else f"loss_agg_mode={aggregation} is not verl's"


def _cut_sizes(job: Job, materials: Materials) -> dict[str, str]:
    """Return the settings of size: a small model, few responses, and steps that save nothing."""
    ranks = min(getattr(job.world_size, "value", 1), materials.processes)
    responses = 1 if read_value(job, f"{ROLLOUT}.n", "1") == "1" else 2  # per prompt
    sizes = (size for size in range(min(materials.batch, ROWS), ROWS) if ROWS % size == 0)
    prompts, batch = str(ROWS * ranks // responses), str(next(sizes, ROWS))
    return {
        f"{MODEL}.path": materials.model,
        "data.train_batch_size": prompts,
        "data.max_prompt_length": str(LENGTH),
        "data.max_response_length": str(LENGTH),
        f"{ACTOR}.ppo_mini_batch_size": prompts,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": batch,
        f"{ACTOR}.ppo_max_token_len_per_gpu": str(TOKENS),
        f"{ACTOR}.ppo_epochs": "1",
        f"{ACTOR}.use_kl_loss": "False",
        f"{ACTOR}.entropy_coeff": "0",
        f"{ACTOR}.optim.lr": LEARNING_RATE,
        f"{ACTOR}.optim.lr_scheduler_type": "constant",
        f"{ACTOR}.optim.lr_warmup_steps": "0",
        f"{ROLLOUT}.n": str(responses),
        f"{ROLLOUT}.temperature": read_value(job, f"{ROLLOUT}.temperature", "1.0"),
        f"{ACTOR}.loss_agg_mode": read_value(job, f"{ACTOR}.loss_agg_mode", "token-mean"),
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": batch,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": str(TOKENS),
        "critic.enable": "False",
        "trainer.nnodes": "1",
        "trainer.n_gpus_per_node": str(ranks),
        "trainer.default_local_dir": materials.output,
        "trainer.logger": "[console]",
        "trainer.resume_mode": "disable",
        **keep_hydra_in(materials),
    }


def _list_terms_left_out(job: Job) -> list[str]:
    """Return the remarks on the other parts of this launch's objective, which are not rehearsed."""
    remarks = []
    if is_on(job, f"{ACTOR}.use_kl_loss"):
        remarks.append("the loss is judged without its KL term (use_kl_loss), which is off in the rehearsal")
    if float(read_value(job, f"{ACTOR}.entropy_coeff", "0")):
        remarks.append("the loss is judged without its entropy (entropy_coeff), which is off in the rehearsal")
    if read_value(job, "algorithm.adv_estimator", "gae") == "gae":
        remarks.append("the critic is not rehearsed: advantages are synthetic")
    return remarks


def _define_objective(job: Job, is_old: bool) -> Objective:
    """Return the objective of the actor's update in its first step."""
    loss = read_value(job, f"{ACTOR}.policy_loss.loss_mode", "vanilla")
    aggregation = read_value(job, f"{ACTOR}.loss_agg_mode", "token-mean")
    divisor = read_value(job, f"{ACTOR}.loss_scale_factor", "1") if aggregation == "seq-mean-token-sum-norm" else "1"
    policy = PolicyGradient(
        of_ratio=loss in RATIO_LOSSES,
        is_sum=aggregation == "token-sum",
        divisor=float(divisor),
        temperature=float(read_value(job, f"{ROLLOUT}.temperature", "1.0")),
    )
    if is_old:
        means: tuple[Normalisation, ...] = (AGGREGATIONS[aggregation],)
        if aggregation == "token-mean":  # a micro-batch has the weight of its rows, since 0.2 if their number differs
            means = ("batch_rows", "batch_tokens") if is_on(job, f"{ACTOR}.use_dynamic_bsz") else ("batch_tokens",)
        return Objective("assistant", means, f"the launch's verl, {OLD_ACTOR}: {loss}, {aggregation}", policy)
    return Objective(
        "assistant",
        (AGGREGATIONS[aggregation],),
        f"verl {job.version} trainer/ppo/core_algos.py: {loss}, {aggregation}, over the mini-batch of all ranks",
        policy,
    )


def read_value(job: Job, name: str, default: str) -> str:
    """Return a setting as written, without its quotes; the default if it is not set or null."""
    value = (get_setting(job, name) or default).strip().strip("\"'")
    return default if value in ("null", "None") else value
