"""Scales down a launch of TRL's trainers, and determines its objective.

Sources for SFT, trl 1.16.0: scripts/sft.py (`load_dataset(dataset_name)`, which takes a folder), trainer/sft_trainer.py
(a conversational row has `messages`; `completion_only_loss` is on if rows have a `completion`; the loss is divided by
the batch's `num_items_in_batch`, which transformers' Trainer sums over batches and ranks).

Sources for DPO: trainer/dpo_trainer.py (`prompt`, `chosen` and `rejected` as messages; `_compute_loss`: the mean over a
batch's pairs; `loss_is_scaled_for_ga` is off, so that in base_trainer.py transformers' Trainer divides by the
accumulation). `precompute_ref_log_probs` and an adapter change the source of the reference's log-probabilities, but not
their values.

Sources for KTO: trainer/kto_trainer.py (pairs are split; `_compute_loss`: the mean over answers); for CPO and SimPO:
experimental/cpo; for BCO: 0.24.0 trainer/bco_trainer.py. GRPO and RLOO are in `policy_rehearsal`. The losses of the
other trainers are not known here; their batches, documents and updates are judged.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from attncheck.lint.fields import DROP, Job, Launch, is_at_least, list_releases
from attncheck.lint.fields.cutting import (
    OFF_VALUES,
    PICTURE_LENGTH,
    TEXT_COLUMNS,
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_CORRECTIONS,
    UNDOCUMENTED,
    WHOLE_ROWS,
    DataForm,
    JobCut,
    Materials,
    Objective,
    Targets,
    choose_learning_rate,
    cut_attention,
    cut_training_arguments,
    drop_reference,
    get_setting,
    is_hub_name,
    is_number,
    is_on,
    keep_taken,
    list_left_out,
    make_objective,
    misses_program,
    point_to_materials,
    read_preference,
    resolve_options,
    stand_in,
)
from attncheck.lint.files import python
from attncheck.lint.frameworks.trl import tables
from attncheck.lint.frameworks.trl.policy_rehearsal import cut_policy, list_policy_remarks, read_policy

REFACTORED = "0.29"  # DPOTrainer was rewritten (0.28.0 and 0.29.1 trainer/dpo_trainer.py)
# Settings of DPO that weight tokens or pairs by the model's output, or add another loss.
CHANGED_LOSS = ("ld_alpha", "use_weighting", "rpo_alpha", "reference_free", "loss_weights", "use_liger_loss")
SCRIPTS = ("sft", "dpo", "grpo", "kto", "reward", "rloo")  # programs in trl/scripts
# Trainers whose loss is unknown -> the form of their data: trl 1.16.0 trainer/reward_trainer.py and
# experimental/.
OTHER_FORMS: Mapping[str, DataForm] = {
    **dict.fromkeys(("orpo", "cpo", "bco"), "preference"),
    "reward": "implicit_preference",  # 0.22.1 data_utils.py:179 and reward_trainer.py:57 lose a separate prompt
    **dict.fromkeys(("gkd", "gold", "distillation"), "messages"),
    **dict.fromkeys(("online_dpo", "xpo", "nash_md"), "prompts"),  # the answers are generated
}
# Other models of these trainers, replaced by the same small one.
OTHER_MODELS = (
    "teacher_model_name_or_path",
    "reward_model_path",
    "reward_model_name_or_path",
    "ref_model_name_or_path",
)
# Settings of the judge and of generated answers, whose default length leaves room for a prompt.
NO_GENERATION = ("judge", "reward_funcs", "use_vllm", "max_completion_length", "max_new_tokens")
TAKES_FILE = "0.18"  # as its command
PICTURES = "0.22"  # trainer/sft_trainer.py has a collator for images since
CORRECTIONS = ({"packing_strategy": "bfd"},)  # "wrapped" cuts one stream of documents into rows


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of TRL's command, a script on its trainers or its file; or why there is none."""
    if job.trainer not in ("sft", "dpo", "grpo", "rloo", "kto", *OTHER_FORMS):
        return f"TRL's {job.trainer} is not rehearsed yet"
    job = resolve_options(launch, job)
    is_policy = job.trainer in ("grpo", "rloo")
    program = launch.words[0].text if launch.words else "trl"
    is_example = program.endswith(f"examples/scripts/{job.trainer}.py") and job.trainer in SCRIPTS
    own_program = f"trl.scripts.{job.trainer}" if is_example and misses_program(launch) else ""
    is_own_script = launch.starts_written_script or not (own_program or program == "trl" or "trl/scripts/" in program)
    reading = read_policy(job, is_own_script) if is_policy else read_objective(job)
    if isinstance(reading, str):
        return reading
    form, objective = reading
    if form == "messages" and launch.starts_written_script and _formats_rows(launch):
        form, objective = "every", replace(objective, targets="labelled")
    has_room = form == "messages" and materials.max_length >= PICTURE_LENGTH
    takes_pictures = has_room and _takes_pictures(launch, job, is_own_script)
    named = get_setting(job, "dataset_name") or ""
    is_list = is_own_script and named.endswith((".yaml", ".yml"))
    attention = cut_attention(job, materials)
    sets = {
        **cut_training_arguments(job, materials),
        **attention.sets,
        "learning_rate": choose_learning_rate(objective),
        "model_name_or_path": materials.model,
        "model_revision": DROP,
        "dataset_name": materials.choose_rows(named, materials.list_file if is_list else materials.data),
        "dataset_num_proc": DROP,
        "max_length": str(materials.max_length),
    }
    if is_own_script and not materials.real_data and is_hub_name(named):
        del sets["dataset_name"]
    if is_policy:
        sets |= cut_policy(job, materials, is_own_script)
        del sets["max_length"]
    if job.trainer in OTHER_FORMS:
        sets |= {name: materials.model for name in OTHER_MODELS if get_setting(job, name) is not None}
        sets |= {name: DROP for name in NO_GENERATION if get_setting(job, name) is not None}
    if job.trainer == "kto":  # it compares each answer with another row's
        sets["per_device_train_batch_size"] = str(max(materials.batch, 2))
    if not materials.real_data:
        sets |= dict.fromkeys(("dataset_config", "dataset_train_split"), DROP)
    if not (materials.full_model or materials.real_data):  # they belong to its own tokenizer
        sets |= dict.fromkeys(("eos_token", "chat_template_path"), DROP)
    foreign = () if launch.words or launch.starts_written_script else tuple(_iter_foreign(launch, job))
    own_rows = bool(foreign) and any(entry.name.startswith("dataset_kwargs") for entry in launch.entries)
    if own_rows:
        sets["dataset_kwargs"] = DROP
    length = get_setting(job, "max_length")
    if length is not None and length.lower() in OFF_VALUES:  # rows are not cut, as in the launch
        sets.pop("max_length", None)
    elif get_setting(job, "max_seq_length") is not None:
        sets["max_seq_length"] = sets.pop("max_length")
    # 0.15.2 and 0.17.0 cli.py: `parse_args` refuses --config, and the script that it would start takes it
    is_script = job.trainer in SCRIPTS and not is_at_least(job.version, TAKES_FILE)
    start = ("python", "-m", f"trl.scripts.{job.trainer}") if is_script else ("trl", job.trainer)
    if is_own_script and launch.program is not None and launch.program.is_complete:
        sets = keep_taken(launch, sets)
    return JobCut(
        sets,
        form,
        objective,
        environ=stand_in(materials) if is_own_script else {},
        options=point_to_materials(launch, materials) if launch.starts_written_script else {},
        command=(*start, "--config", "{file}"),
        program=own_program,
        foreign=foreign,
        driver="trl" if is_policy or form == "prompts" else "",
        data=named if job.trainer == "sft" else "",
        pictures="column" if takes_pictures else "",
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(
            *(list_policy_remarks(job) if is_policy else ()),
            *([f"{program} was not found: {own_program} replaces it"] if own_program else []),
            *([f"the loss of TRL's {job.trainer} is unknown"] if not objective.is_documented else []),
            *attention.remarks,
            *list_left_out(job, materials),
            *(["dataset_kwargs is left out: TRL's command prepares the rows"] if own_rows else []),
            *([f"removed, because trl {job.trainer} does not know them: {', '.join(foreign)}"] if foreign else []),
        ),
        corrections=CORRECTIONS if job.trainer == "sft" and is_on(job, "packing") else (),
        rank_corrections=TRAINER_RANK_CORRECTIONS if job.trainer == "sft" else (),
        whole_rows=WHOLE_ROWS,
    )


def _takes_pictures(launch: Launch, job: Job, is_own_script: bool) -> bool:
    """Return whether rows may have images: TRL's own program or a script that names their column collates them.

    1.16.0 trainer/sft_trainer.py refuses them with these settings.
    """
    refused = is_on(job, "packing") or is_on(job, "padding_free") or is_on(job, "assistant_only_loss")
    if job.trainer != "sft" or refused or get_setting(job, "truncation_mode") or not is_at_least(job.version, PICTURES):
        return False
    script = python.read_script(launch.file) if is_own_script and launch.file is not None else None
    return bool(script.columns & {"image", "images"}) if script is not None else not is_own_script


def _formats_rows(launch: Launch) -> bool:
    """Return whether a script makes its rows from columns other than `messages`."""
    script = python.read_script(launch.file) if launch.file is not None else None
    return script is not None and bool(script.columns & TEXT_COLUMNS)


def _iter_foreign(launch: Launch, job: Job) -> Iterator[str]:
    """Yield the keys of a configuration that the user's own program accepts, but TRL's command does not."""
    known = tables.load_parser_options(job.trainer, job.version, list_releases("transformers")[-1]).current
    renamed = {unknown.name for unknown in job.unknown_settings}
    for name in (entry.name for entry in launch.entries):
        if name.partition(".")[0] not in {*known, *renamed, *tables.read_launcher_options(), "env"}:
            yield name


def _read_sft(job: Job) -> tuple[DataForm, Objective]:
    """Return the data's form and the objective of SFT."""
    form: DataForm = "messages"
    targets: Targets = "assistant" if is_on(job, "assistant_only_loss") else "all"
    if is_on(job, "completion_only_loss"):
        form, targets = "prompt_completion", "assistant"
    source = f"trl {job.version} trainer/sft_trainer.py: the mean over num_items_in_batch"
    return form, Objective(targets, TRAINER_NORMALISATIONS, source)


def _read_dpo(job: Job) -> tuple[DataForm, Objective]:
    """Return the data's form and the loss of a pair."""
    for name in CHANGED_LOSS:
        value = get_setting(job, name)
        if value is not None and (not value or value.lower() not in OFF_VALUES):  # a switch has no value
            return "preference", UNDOCUMENTED
    if (get_setting(job, "f_divergence_type") or "reverse_kl") != "reverse_kl":
        return "preference", UNDOCUMENTED
    loss = get_setting(job, "loss_type") or "sigmoid"
    smoothing = get_setting(job, "label_smoothing")
    if "sigmoid" in loss and is_at_least(job.version, REFACTORED):
        smoothing = None  # it has been ignored since that release
    default = 0.0 if is_at_least(job.version, REFACTORED) or "exo" not in loss else 1e-3  # 0.22.2: used if it is 0
    preference = read_preference(loss, (get_setting(job, "beta"), 0.1), (smoothing, default))
    source = f"trl {job.version} trainer/dpo_trainer.py: the mean over a batch's pairs, divided by the accumulation"
    if isinstance(preference, str) or preference.loss == "simpo" or not preference.is_paired:
        return "preference", UNDOCUMENTED
    return "preference", make_objective(preference, source)


def _read_kto(job: Job) -> tuple[DataForm, Objective]:
    """Return the data's form and the loss of an answer."""
    weights = (get_setting(job, name) for name in ("desirable_weight", "undesirable_weight"))
    if is_on(job, "use_liger_kernel") or any(map(is_weighted, weights)):
        return "preference", UNDOCUMENTED
    preference = read_preference(get_setting(job, "loss_type") or "kto", (get_setting(job, "beta"), 0.1))
    source = f"trl {job.version} trainer/kto_trainer.py: the mean over a batch's answers, divided by the accumulation"
    return "preference", UNDOCUMENTED if isinstance(preference, str) else make_objective(preference, source)


def _read_cpo(job: Job) -> tuple[DataForm, Objective]:
    """Return the data's form and CPO's or SimPO's loss of a pair, which has no reference."""
    names = {"beta": 0.1, "label_smoothing": 0.0, "cpo_alpha": 1.0}
    numbers = [(get_setting(job, name), default) for name, default in names.items()]
    preference = read_preference(get_setting(job, "loss_type") or "sigmoid", *numbers)
    preference = drop_reference(preference, get_setting(job, "simpo_gamma") or "0.5")
    is_changed = (get_setting(job, "alpha") or "0").lower() not in (*OFF_VALUES, "0.0")  # AlphaPO
    if isinstance(preference, str) or is_changed:
        return "preference", UNDOCUMENTED
    source = f"trl {job.version} cpo_trainer.py: the mean over a batch's pairs, divided by the accumulation"
    return "preference", make_objective(preference, source)


def _read_bco(job: Job) -> tuple[DataForm, Objective]:
    """Return the data's form and BCO's loss of an answer."""
    preference = read_preference("bco", (get_setting(job, "beta"), 0.1))
    source = f"trl {job.version} bco_trainer.py: the mean over a batch's answers, divided by the accumulation"
    return "preference", UNDOCUMENTED if isinstance(preference, str) else make_objective(preference, source)


def is_weighted(weight: str | None) -> bool:
    """Return whether the weight of a kind of answers is set and is not 1."""
    return weight is not None and not (is_number(weight) and float(weight) == 1.0)


READERS: Mapping[str, Callable[[Job], tuple[DataForm, Objective]]] = {
    "sft": _read_sft,
    "dpo": _read_dpo,
    "kto": _read_kto,
    "cpo": _read_cpo,
    "bco": _read_bco,
}


def read_objective(job: Job) -> tuple[DataForm, Objective]:
    """Return the data's form and the objective of a trainer that does not generate its answers."""
    return READERS[job.trainer](job) if job.trainer in READERS else (OTHER_FORMS[job.trainer], UNDOCUMENTED)
