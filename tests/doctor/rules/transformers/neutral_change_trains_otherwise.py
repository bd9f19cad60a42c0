"""Cases for ATN470."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import (
    COLUMN,
    EVALUATED,
    HALVES,
    ODD,
    PACKED,
    PAD_IS_END,
    REWARDS,
    SAVED,
    SHORT_STEP,
    WINDOWS,
    Experiments,
    TwinMeasurement,
)
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_twins(*twins: TwinMeasurement) -> Snapshot:
    return replace(s.h200(), experiments=s.Known(Experiments(twins=twins)))


def with_launch(snapshot: Snapshot, accumulation: int = 1, trainer: str = "dpo", **stated: str) -> Snapshot:
    settings = tuple(
        Setting(f"--{name}", value, SourceLocation("run.sh", 3, 1), (0, 1)) for name, value in stated.items()
    )
    return s.with_job(
        snapshot, {"accumulation": accumulation}, framework="ms-swift", trainer=trainer, settings=settings
    )


def twin(setting: str = "", change: str = "padding_free", variant: str = "dpo", **given: object) -> TwinMeasurement:
    measured = {"ratio": 0.9, "cosine": 0.9, "part": "loss", "place": "swift/dpo_trainer.py:152", **given}
    return TwinMeasurement("ms-swift", variant, setting, change, **measured)  # type: ignore[arg-type]


ALPHA = with_twins(twin("ld_alpha=0.25"))
IPO = with_twins(twin("loss_type=ipo"))
DOUBLED = with_twins(twin(change=HALVES, ratio=2.0, cosine=1.0))
SHORT = with_twins(twin(change=SHORT_STEP, variant="seq_cls", ratio=0.5, cosine=1.0))
COUPLED = with_twins(twin(change=HALVES, ratio=0.98, cosine=0.9))
MARGIN = with_twins(twin(f"margin={COLUMN}", HALVES, "rm", ratio=0.98, cosine=0.99))
CONTRAST = with_twins(twin(change=ODD, variant="kto", part="a row that is its own contrast"))
SCALED = f"scale_rewards, {REWARDS}"
EXCHANGED = with_twins(
    twin(change=SCALED, variant="grpo", ratio=4.0), twin("scale_rewards=none", SCALED, "grpo", ratio=1.0)
)
LEFT = with_twins(twin("scale_rewards=none", SCALED, "grpo", ratio=1.0))
TAGGER = TwinMeasurement("transformers", "ForTokenClassification", "", HALVES, 2.0, 1.0, "gradient", "trainer.py:9")

LIGER = with_twins(twin(change=f"use_liger_loss, {HALVES}", variant="grpo", ratio=0.667, cosine=1.0))


WINDOW = with_twins(TwinMeasurement("tokenizers", "cut on the right", "", WINDOWS, 0.2, part="tokens"))
ROWS = with_twins(twin("max_length=66", PACKED, "sft", ratio=4.6, part="rows"))


def with_packing(max_length: str, packed: bool = True, measured: Snapshot = ROWS) -> Snapshot:
    launch = with_launch(measured, 1, "sft", max_length=max_length)
    return s.with_job(launch, {"packing": "position_ids" if packed else "padding"})


def with_head(head: str) -> Snapshot:
    plan = {"accumulation": 4}
    return s.with_job(with_twins(TAGGER), plan, framework="transformers", trainer="trainer", head=head)


END = with_twins(twin("lmbda=1.0", PAD_IS_END, "gkd", ratio=0.97, part="labels"))
UNSAVED = with_twins(twin(change=SAVED, variant="rm", part="RuntimeError: Some tensors share memory"))
FIRES = {
    "a trainer that cannot save": with_launch(UNSAVED, 1, "rm"),
    "a trainer that masks its own answers' last token": with_launch(END, 1, "gkd", lmbda="1.0"),
    "liger's loss in a launch that accumulates": s.with_job(with_launch(LIGER, 4, "grpo"), {"liger": True}),
    "the launch's loss has the change of the default": with_launch(
        with_twins(twin(change=HALVES, ratio=2.0, cosine=1.0), twin("loss_type=ipo", HALVES, ratio=2.0, cosine=1.0)),
        *(4, "dpo"),
        loss_type="ipo",
    ),
    "rows with a number that couples them": with_launch(MARGIN, 4, "rm"),
    "a row that is its own contrast": with_launch(CONTRAST, 1, "kto"),
    "rewards are scaled by default": with_launch(EXCHANGED, 1, "grpo"),
    "rewards are scaled although they must not be": with_launch(EXCHANGED, 1, "grpo", scale_rewards="none"),
    "a program's model has the head": with_head("ForTokenClassification"),
    "a long text loses tokens": WINDOW,
    "packed rows hold one document": ROWS,
    "a launch that packs as was measured": with_packing("3000"),
    "a launch that packs, if a power of two is wrong too": with_packing(
        "2048", measured=with_twins(twin("max_length=64", PACKED, "sft", ratio=0.8, part="tokens"))
    ),
    "no launch": ALPHA,
    "a launch with the option and the change": with_launch(ALPHA, ld_alpha="0.5", padding_free="true"),
    "a launch with the loss and the change": with_launch(IPO, loss_type="ipo", padding_free="true"),
    "a launch that accumulates": with_launch(DOUBLED, 4),
    "a launch of a task whose last step is short": with_launch(SHORT, 4, "sft", task_type="seq_cls"),
    "a row that fits is cut": with_launch(with_twins(twin(change="max_length", part="a row that fits"))),
    "evaluating": with_launch(with_twins(twin(change=EVALUATED)), precompute_ref_log_probs="true"),
    "padded rows fail": with_twins(twin("loss_type=ipo", part="RuntimeError: …")),
}
SILENT = {
    "another trainer": with_launch(UNSAVED, 1, "dpo"),
    "another score, if the launch's tokenizer has such a pad token": with_launch(
        with_twins(twin(change=PAD_IS_END, variant="rm")), 1, "rm"
    ),
    "answers that the launch does not let the trainer generate": with_launch(END, 1, "gkd", lmbda="0"),
    "liger's loss in a launch that does not accumulate": s.with_job(with_launch(LIGER, 1, "grpo"), {"liger": True}),
    "a launch that accumulates without liger": with_launch(LIGER, 4, "grpo"),
    "liger's loss, of another loss than the default": s.with_job(
        with_launch(LIGER, 4, "grpo", loss_type="bnpo"), {"liger": True}
    ),
    "rows with a number that couples them, without accumulation": with_launch(MARGIN, 1, "rm"),
    "another value scales rewards": with_launch(LEFT, 1, "grpo", scale_rewards="group"),
    "the default scales rewards": with_launch(LEFT, 1, "grpo"),
    "a program's model has another head": with_head("ForCausalLM"),
    "a launch that packs to a power of two, which is right": with_packing("2048"),
    "a launch that does not pack": with_packing("3000", packed=False),
    "nothing was measured": s.h200(),
    "measured neutral": with_launch(with_twins(twin("ld_alpha=0.25", part="")), ld_alpha="0.5", padding_free="true"),
    "a launch without the option": with_launch(ALPHA, padding_free="true"),
    "a launch without the change": with_launch(ALPHA, ld_alpha="0.5", padding_free="false"),
    "a launch of another loss": with_launch(IPO, loss_type="sigmoid", padding_free="true"),
    "a launch without accumulation": with_launch(DOUBLED),
    "a launch of another task": with_launch(SHORT, 4, "sft", task_type="causal_lm"),
    "a loss that couples rows": with_launch(COUPLED, 4),
    "could not be measured": with_twins(twin(part="", error="TypeError")),
}
