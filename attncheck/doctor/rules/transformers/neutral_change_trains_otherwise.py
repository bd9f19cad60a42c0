"""A change that is neutral by documentation changes what the installed trainer computes.

What it checks: `doctor --deep` lets each of TRL's trainers, and those that ms-swift and LLaMA-Factory make and that do
not generate their rows, take one step on four rows. The model of GRPO and RLOO always gives the same answers. It then
takes the same step with one change: two micro-batches for one batch, more padding, the EOS token as pad token,
`padding_free`, liger's loss, gradient checkpointing, a precomputed reference, a short last step of an epoch, or a
`max_length` that only other rows exceed. Losses and options are read from the installed classes, and each of them is
compared. Both halves of the rows have as many rows and tokens, so that a mean over either is the same. The attention of
the model adds nothing to its results: only what the trainer computes is compared. The rows of a launch are reported
only if it sets the loss or option and makes the change.

Four relations are stated once and checked for what the classes list. A column that a trainer looks for in a batch, such
as `margin`, changes only its own row. With an odd number of rows, no row is its own contrast. The heads of transformers
that classify give the same gradient for each division of a batch. Rewards times 4 change nothing if the trainer divides
them by their deviation, and otherwise give 4 times the gradient.

Each trainer must save its model, whose embeddings are tied. Two more relations compare tokens. The windows into which
the installed tokenizer cuts a long text have all of its tokens. The rows of a trainer that packs have the tokens of its
padded rows, and there are at most 1.5 times as many as are needed.

`attncheck smoke LAUNCH` asks the launch itself: it runs again for a few steps, with one batch in place of its
accumulated ones, with liger's loss if that was left out, or without `padding_free`, `precompute_ref_log_probs` or
checkpointing. It runs once, if the loss is one of pairs or a policy, or if no definition has judged it; `--only twin`
asks any launch. The same tokens must give the same labels, hidden states, loss and gradients. A loss that depends on
its micro-batch by its definition (KTO, a mean over the tokens of a micro-batch) is no fault. If a loss depends on it
otherwise, by no factor, the answer is a warning.

Why it matters: the error is silent. A launch trains another objective than with the setting's other value, or its
gradients are off by a factor.

What to do: leave the change out, or use a release in which it was measured neutral. file:line is where the trainer uses
the setting.

Source: the measurement (attncheck/doctor/experiments/worker/twins.py). Measured: ms-swift 4.5.0, DPO with `ld_alpha`
and `padding_free`, and the last step of DPO, ORPO, CPO and seq_cls, 0.5 times the gradient; TRL 1.9.0, ORPO and CPO
with `max_length`, KTO with `desirable_weight` and liger, DPO with `ld_alpha` and liger, BCO's evaluation with
`precompute_ref_log_probs`; TRL 0.24.0 and 0.29.1, GKD and PRM, whose losses nothing divides, twice the gradient
(transformers 5.17.0 modeling_layers.py:301, trainer.py:2035). ms-swift 4.6.0 still divides the last step by all
micro-batches (rlhf_trainers/dpo_trainer.py:485, rlhf_mixin.py:124). Measured neutral: TRL 1.16.0. GRPO (DAPO's loss)
with liger in two micro-batches, 0.667 times: TRL 0.24.0 and 1.9.0 (grpo_trainer.py:2906; huggingface/trl#5619). The EOS
token as pad token: GKD's own answers (TRL 0.24.0; huggingface/trl#6357), and a reward model, whose score is then that
of the token before. More padding: LUSPO's loss of a policy (TRL 0.29.1; huggingface/trl#6654). Faults of this kind:
modelscope/ms-swift#10072, #9925, #10084; huggingface/trl#6588, #6443, #7062, #6006. Of the four
relations: huggingface/transformers#47688 (4.56.1, 5.12.0 and 5.17.0: modeling_layers.py drops num_items_in_batch),
modelscope/ms-swift#9927 (4.5.0; TRL 0.22.1 reward_trainer.py:262, too), hiyouga/LLaMA-Factory#7509 (0.9.2; 0.9.5 is
right), huggingface/trl#3991 (0.22.1; 1.16.0 is right). Saving: LLaMA-Factory
0.9.4's rm (hiyouga/LLaMA-Factory#10137). Of tokens: huggingface/tokenizers#2091 (0.23.1: 10 of 50;
0.22.2 and 0.23.3 are right), huggingface/trl#3887 (0.19.1: a row for each document unless max_length is a power of two;
0.18.2 and 0.24.0 are right).
"""

from collections.abc import Iterator, Sequence

from attncheck.core.experiments import (
    COLUMN,
    EVALUATED,
    HALVES,
    ODD,
    PACKED,
    PAD_IS_END,
    PADDED,
    REWARDS,
    SAVED,
    SHORT_STEP,
    WINDOWS,
    TwinMeasurement,
)
from attncheck.doctor.queries.launch import name_settings
from attncheck.doctor.rules import Fix, Job, Known, MissingFact, Problem, Problems, Rule, Snapshot

CUT = "max_length"
OFF = {"", "0", "false", "no", "none", "null"}
FIXES = {
    HALVES: "gradient_accumulation_steps: 1",
    SHORT_STEP: "dataloader_drop_last: true",
    PADDED: "per_device_train_batch_size: 1",
    CUT: "remove rows longer than max_length before training",
    EVALUATED: "precompute_ref_log_probs: false",
    ODD: "train on an even number of rows",
    PAD_IS_END: "a pad token that is not the EOS token",
    SAVED: "use a release of the trainer that was measured to save, or a model whose embeddings are not tied",
    REWARDS: "use a release of the trainer in which the setting has its documented effect",
    COLUMN: "train without this column",
    PACKED: "a max_length that is a power of two (if it was measured right), or packing: false",
    WINDOWS: "tokenizers!=0.23.1,!=0.23.2, or return_overflowing_tokens: false with texts that were cut before",
}
OF_SOME = (SHORT_STEP, CUT, ODD, COLUMN, PAD_IS_END, SAVED)  # changes of some rows, steps, tokenizers and models only
LOSSES = ("loss_type", "pref_loss")
OF_LOSS = (HALVES, "padding_free", "use_liger_kernel", "use_liger_loss")  # changes that are made with each loss
TEXTS = {
    CUT: f"{CUT} changes {{0.part}}: its tokens are not those that it has alone",
    SHORT_STEP: "the last step of an epoch, with fewer micro-batches, has {0.ratio:.2g} times the gradient",
    PAD_IS_END: "if the pad token is the EOS token, the {0.part} of a row differs: {0.ratio:.3g} times the gradient",
    ODD: f"with {ODD}, one of them is compared with itself instead of another row",
    SAVED: f"{SAVED} of a model with tied embeddings fails: {{0.part}}",
    REWARDS: f"{REWARDS} give {{0.ratio:.3g}} times the gradient, which this value of {{1}} excludes",
    COLUMN: "the number of a row changes the loss of the other rows in its micro-batch",
    PACKED: "packing changes the data of an epoch: it has {0.ratio:.3g} times the {0.part} that it needs",
    WINDOWS: "the windows of a long text (return_overflowing_tokens) have {0.ratio:.0%} of its {0.part}",
}


def check(snapshot: Snapshot) -> Problems:
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    for item in iter_reported([item for item in snapshot.measurements.twins if item.part and not item.is_coupled], job):
        option = item.change.partition(",")[0]
        yield Problem(
            message=f"{item.name}: {_describe(item)}",
            evidence=tuple(_iter_evidence(item)),
            fixes=(Fix("leave the change out", "setting", FIXES.get(_name_change(item), f"{option}: false")),),
            subject=f"{item.trainer} {item.variant}",
            predicted=job is None or _name_change(item) in OF_SOME or item.trainer == "transformers",
        )
    unasked = [item for item in snapshot.measurements.twins if item.error and not (item.change or item.lacks_import)]
    names = [item.name for item in unasked if job is None or is_of_job(item, job)]
    if names:
        raise MissingFact(f"not measured: {', '.join(names)}: {unasked[0].error}")
    for text in snapshot.measurements.lost:
        if text.startswith("neutral changes of") and (job is None or job.framework in text):
            raise MissingFact(text)


def iter_reported(changed: Sequence[TwinMeasurement], job: Job | None) -> Iterator[TwinMeasurement]:
    """Yield the measurements of a launch, of all without one, but for those that others imply.

    These are a setting whose default has the same change, and a short last step of two micro-batches that differ.
    """
    reported = [item for item in changed if job is None or is_of_job(item, job)]
    by_default = {(i.trainer, i.variant, i.change) for i in reported if not i.setting and _name_change(i) != REWARDS}
    for item in reported:
        is_repeated = bool(item.setting) and (item.trainer, item.variant, item.change) in by_default
        is_repeated |= item.change == SHORT_STEP and (item.trainer, item.variant, HALVES) in by_default
        if not is_repeated:
            yield item


def _name_change(item: TwinMeasurement) -> str:
    return COLUMN if item.setting.endswith(COLUMN) else REWARDS if item.change.endswith(REWARDS) else item.change


def _describe(item: TwinMeasurement) -> str:
    text = TEXTS.get(_name_change(item), "").format(item, item.change.partition(",")[0])
    if text:
        return text
    if item.part not in ("labels", "loss", "gradient"):
        return f"{item.change} does not train the same: padded rows fail ({item.part})"
    return f"{item.change} changes what is trained: {item.ratio:.3g} times the {_name_compared(item)}"


def _name_compared(item: TwinMeasurement) -> str:
    return "evaluation loss" if item.change == EVALUATED else "gradient"


def _iter_evidence(item: TwinMeasurement) -> Iterator[str]:
    if item.part in ("labels", "loss", "gradient"):
        yield f"measured on the same rows: the {item.part} differs first; cosine of the gradients {item.cosine:.4f}"
    classes = ("measured with Mistral's class, whose forward takes **kwargs; a class without them is divided",)
    yield from (*classes * (item.trainer == "transformers"), item.place)


def is_of_job(item: TwinMeasurement, job: Job) -> bool:
    """Return whether a launch runs this trainer with this setting, and makes the change."""
    stated = {name: setting.value.lower() for name, setting in name_settings(job).items()}
    names = {job.trainer, job.head, stated.get("task_type", "")}
    if item.trainer != job.framework or item.variant not in names:
        return False
    if not item.change:  # nothing was measured
        return True
    name, _, value = item.setting.partition("=")
    if not item.setting and item.change.partition(",")[0] in OF_LOSS and any(stated.get(name) for name in LOSSES):
        return False  # each loss was measured
    own = stated.get(name, "")
    if value not in (own, COLUMN) and (own in OFF or not value[:1].isdigit()):
        return False
    if item.change.endswith((HALVES, SHORT_STEP)) and (job.plan.accumulation <= 1 or ", " not in item.change):
        return job.plan.accumulation > 1
    if item.change in (CUT, ODD, SAVED):
        return True
    if item.change == PAD_IS_END:  # a launch's tokenizer is not known: only what would lose tokens
        return item.part == "labels"
    if item.change == PACKED:  # measured for a power of two, and for another number
        return job.plan.packed and (_is_power(value) or (own.isdigit() and not _is_power(own)))
    if _name_change(item) == REWARDS:
        return bool(item.setting) or item.change.partition(",")[0] not in stated
    if item.change == PADDED:
        return not job.plan.packed
    has = {"use_liger_kernel": job.plan.liger, "use_liger_loss": job.plan.liger}
    has["gradient_checkpointing"] = job.plan.gradient_checkpointing
    change = item.change.partition(",")[0]
    return has.get(change, stated.get(change, "") not in OFF)


def _is_power(number: str) -> bool:
    return int(number).bit_count() == 1


RULE = Rule("ATN470", "error", check)
