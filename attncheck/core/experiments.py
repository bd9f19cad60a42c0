"""Measurements of small experiments with the installed trainers on a CPU: plain data."""

from dataclasses import dataclass

VARIANTS = ("liger", "tensor parallel")  # ways to compute the same step
SHORT_STEP = "a short last step"  # a division: one micro-batch is left for the last step of an epoch
HALVES = "two micro-batches"  # a division of one batch
PADDED = "more padding"  # of the same rows
PAD_IS_END = "the EOS token as pad token"
EVALUATED = "precompute_ref_log_probs, evaluate new rows"
ODD, REWARDS, SAVED = "an odd number of rows", "rewards times 4", "the first checkpoint"
WINDOWS, PACKED = "windows of a long text", "packing"
COLUMN = "a number in each row"  # the value of a setting that is a column of the rows
CHECKPOINTED = "LoRA with checkpointing"  # a given adapter, and gradient checkpointing as the trainer sets it
CAPPED = "liger softcap"  # liger's loss of a model that caps its logits, for an objective of TRL: "dpo liger softcap"
GIVEN = "QLoRA"  # a trainer is given a model with an adapter: "dpo QLoRA"
EXPERTS = "target_parameters"  # such a model is a mixture of experts, and the adapter one of their weights
TOLERANCE = 0.02  # relative; in float32, two runs of one tiny model differ by 1e-6


@dataclass(frozen=True)
class GradientMeasurement:
    """The gradient of the first optimiser step on documents of two lengths, for one way of dividing the batch.

    The expected gradient is that of the summed loss divided by all tokens. `ratio` is the norm over its norm, `cosine`
    the cosine of the angle between the two. `logged` is the norm that the trainer logged, over the same norm (0:
    nothing was logged). `later` is the norm at the second step, on the same documents, over that at the first, and
    `moved` the share of the parameters that the steps changed, and `loss` the first loss that it logged (0: none).
    """

    trainer: str  # "transformers", "trl"
    division: str  # "one batch", "two micro-batches", "two replicas", "two ranks", SHORT_STEP
    ratio: float = 0.0
    cosine: float = 0.0
    logged: float = 0.0
    error: str = ""  # why nothing was measured
    # one of VARIANTS, an objective of TRL ("dpo"), "balancing loss", CHECKPOINTED, or a given adapter: "dpo QLoRA"
    variant: str = ""
    later: float = 1.0
    moved: float = 1.0
    loss: float = 0.0

    @property
    def name(self) -> str:
        """The trainer with its variant."""
        return f"{self.trainer} ({self.variant})" if self.variant else self.trainer

    @property
    def points_elsewhere(self) -> bool:
        """Whether the gradient's direction differs from the expected one."""
        return not self.error and self.cosine < 1 - TOLERANCE


@dataclass(frozen=True)
class BatchMeasurement:
    """The keys of a trainer's first batch, by layout and attention."""

    trainer: str
    layout: str  # "padded", "packing", "padding_free"
    attention: str
    keys: tuple[str, ...] = ()
    separates: bool = False  # whether the batch marks where the documents of a row begin; always True for padded rows
    error: str = ""


@dataclass(frozen=True)
class AccumulationMeasurement:
    """How much of each accumulated micro-batch one step of DeepSpeed's optimizer takes: 1 means all of it."""

    stage: int  # ZeRO stage
    offload: str  # where the optimizer's state is: "cpu", "" for the device
    weights: tuple[float, ...] = ()
    error: str = ""

    @property
    def loses_gradients(self) -> bool:
        """Whether the step leaves out, or scales, a micro-batch."""
        return any(abs(weight - 1) > TOLERANCE for weight in self.weights)

    @property
    def evidence(self) -> str:
        """The weights as a line of evidence."""
        return f"measured: one step takes {', '.join(f'{weight:g}' for weight in self.weights)} of the micro-batches"


@dataclass(frozen=True)
class ResumeMeasurement:
    """How training that resumes inside the second epoch differs from training without interruption.

    `same` is the share of steps that get the same documents, `drift` the distance between the final weights, over the
    distance that the steps after the checkpoint moved them.
    """

    trainer: str
    same: float = 1.0
    drift: float = 0.0
    error: str = ""  # why nothing was measured

    @property
    def differs(self) -> bool:
        """Whether resuming changes what is trained."""
        return not self.error and (self.same < 1 or self.drift > TOLERANCE)


@dataclass(frozen=True)
class SavingMeasurement:
    """How much a trained model's outputs change by an operation, relative to their standard deviation."""

    model: str  # "custom class", "tied embeddings", an adapter on them: "modules_to_save=lm_head", or a kind: "LOHA"
    operation: str  # "saved and loaded", "merged", "merged, saved and loaded", "merged with another"
    change: float = 0.0
    error: str = ""  # why nothing was measured

    @property
    def is_another(self) -> bool:
        """Whether the operation gives another model."""
        return not self.error and self.change > TOLERANCE


@dataclass(frozen=True)
class EvaluationMeasurement:
    """The evaluation loss before the first step, over the training loss of that step on the same rows and weights."""

    trainer: str
    variant: str = ""  # an objective of TRL, with a loss: "grpo loss_type=grpo"
    ratio: float = 1.0
    error: str = ""  # why evaluating failed; training works
    at_start: bool = False  # it fails before the first step only
    by_row: float = 1.0  # the loss of rows of two lengths, evaluated one by one, over that of all in one batch
    unmeasured: str = ""


@dataclass(frozen=True)
class ScoringMeasurement:
    """How much padding changes what a model with learned positions computes for the rows that a trainer scores.

    `change` is relative to the row without padding, `shifted` to that row at the positions that it has in the batch.
    """

    trainer: str
    variant: str  # an objective of TRL: "grpo"
    change: float = 0.0
    shifted: float = 0.0
    error: str = ""  # why nothing was measured

    @property
    def counts_padding(self) -> bool:
        """Whether padding shifts the positions of a row, and changes nothing else."""
        return not self.error and self.change > TOLERANCE >= self.shifted

    @property
    def sees_padding(self) -> bool:
        """Whether the tokens of a row attend to padding."""
        return not self.error and min(self.change, self.shifted) > TOLERANCE


@dataclass(frozen=True)
class RouterMeasurement:
    """Whether the router logits of a mixture of experts are probabilities. Its balancing loss takes their softmax."""

    model_type: str
    are_probabilities: bool = False
    place: str = ""  # the file of the class
    error: str = ""  # why nothing was measured


@dataclass(frozen=True)
class TwinMeasurement:
    """How a trainer's step changes by a change that is neutral by documentation, or by another division of its rows.

    `ratio` and `cosine` compare the gradients (of an evaluation: the losses). `part` is what differs first: "labels",
    "loss", "gradient", "a row that fits", "a row that is its own contrast", "tokens" or "rows" that are lost or too
    many, or the error of rows that only the change makes trainable; "" for nothing.
    """

    trainer: str
    variant: str  # an objective: "dpo"
    setting: str = ""  # a loss or option other than the default: "loss_type=ipo"
    change: str = ""  # a setting's name, HALVES, SHORT_STEP, PADDED, PAD_IS_END, EVALUATED, ODD, REWARDS
    ratio: float = 1.0
    cosine: float = 1.0
    part: str = ""
    place: str = ""  # file:line where the trainer uses the setting or makes the change
    error: str = ""  # why nothing was measured

    @property
    def lacks_import(self) -> bool:
        """Whether the trainer cannot be made because an import fails."""
        return not self.change and self.error.startswith("an import fails: ")

    @property
    def name(self) -> str:
        """The trainer with its objective and setting."""
        return f"{self.trainer} {self.variant}{f' with {self.setting}' if self.setting else ''}"

    @property
    def is_rescaled(self) -> bool:
        """Whether half a batch has twice or half of its share of the gradient, in the same direction."""
        is_factor = min(abs(self.ratio / factor - 1) for factor in (0.5, 2)) <= TOLERANCE
        return is_factor and self.cosine > 1 - TOLERANCE

    @property
    def is_coupled(self) -> bool:
        """Whether a row's gradient depends on the others of its micro-batch, as that of a loss may by definition."""
        is_explained = self.is_rescaled or self.setting.endswith(COLUMN)  # a row's own number is no part of others
        return bool(self.part) and self.change == HALVES and not is_explained


@dataclass(frozen=True)
class Experiments:
    """All measurements, and the parts that did not end."""

    gradients: tuple[GradientMeasurement, ...] = ()
    batches: tuple[BatchMeasurement, ...] = ()
    accumulations: tuple[AccumulationMeasurement, ...] = ()
    resumes: tuple[ResumeMeasurement, ...] = ()
    savings: tuple[SavingMeasurement, ...] = ()
    evaluations: tuple[EvaluationMeasurement, ...] = ()
    scorings: tuple[ScoringMeasurement, ...] = ()
    twins: tuple[TwinMeasurement, ...] = ()
    routers: tuple[RouterMeasurement, ...] = ()
    lost: tuple[str, ...] = ()  # "neutral changes of trl: not measured in 480 s: …"

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why a trainer is not known: its undivided batch, its ranks or its padded rows could not be measured."""
        divisions = ("one batch", "two ranks")
        gradients = (item for item in self.gradients if item.division in divisions and not item.variant)
        batches = (item for item in self.batches if (item.layout, item.attention) == ("padded", "sdpa"))
        return (
            *(f"gradients of {item.trainer}, {item.division}: {item.error}" for item in gradients if item.error),
            *(f"batches of {item.trainer}: {item.error}" for item in batches if item.error),
            *(f"resuming of {item.trainer}: {item.error}" for item in self.resumes if item.error),
        )

    def baseline(self, trainer: str, variant: str = "") -> GradientMeasurement | None:
        """Return the measurement of the undivided batch, computed the plain way; None if there is none."""
        wanted = (trainer, "" if variant in VARIANTS else variant.removesuffix(CAPPED).strip(), "one batch")
        measured = (item for item in self.gradients if (item.trainer, item.variant, item.division) == wanted)
        return next((item for item in measured if not item.error and item.ratio > 0), None)
