"""Losses of pairs of answers if the policy is its own reference: their values and slopes.

A preference loss depends on how much likelier the policy makes each answer than its reference does. At the first step
the two are one model, so the log-ratios are 0. The loss is its value there, and its gradient is a weighted sum of the
gradients of the answers' −log p. Sources: trl 1.16.0 trainer/dpo_trainer.py `_compute_loss`, a branch for each loss
type (`loss += per_sequence_loss.mean()`: the mean over a batch's pairs). Not included: losses without a reference
(ORPO, SimPO), and losses whose slopes at 0 depend on more than beta and the label smoothing.
"""

from dataclasses import dataclass
from math import log
from typing import Literal, get_args

PreferenceLoss = Literal[
    "sigmoid",  # DPO; with label smoothing, conservative DPO
    "sigmoid_norm",
    "hinge",
    "ipo",
    "ipo_of_sums",  # as in `DPOLoss` of openrlhf 0.11.2 models/loss.py
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "kto",  # for single answers: trl 1.16.0 trainer/kto_trainer.py `_compute_loss`; the next is too
    "apo_zero_unpaired",
]
PREFERENCE_LOSSES: tuple[PreferenceLoss, ...] = get_args(PreferenceLoss)
UNPAIRED_LOSSES = ("kto", "apo_zero_unpaired")  # the mean over answers, in any combination in a batch
# these use an answer's mean log-probability per token; the others use the sum
AVERAGED_LOSSES = ("ipo", "sigmoid_norm")


@dataclass(frozen=True)
class Slopes:
    """A pair's loss if all log-ratios are 0, and its slope per nat of each answer's −log p."""

    value: float
    chosen: float
    rejected: float


@dataclass(frozen=True)
class Preference:
    """The loss of a job that trains on pairs: its name as TRL writes it, and its parameters."""

    loss: PreferenceLoss = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0

    @property
    def is_paired(self) -> bool:
        """Whether the loss depends on both answers of a pair, so that they share a batch."""
        return self.loss not in UNPAIRED_LOSSES

    @property
    def averages_tokens(self) -> bool:
        """Whether an answer's log-probability is the mean over its tokens, not the sum."""
        return self.loss in AVERAGED_LOSSES

    @property
    def has_beta_in_slopes_alone(self) -> bool:
        """Whether the value at log-ratios of 0 does not depend on beta; the slopes are proportional to it."""
        return self.loss not in ("ipo", "ipo_of_sums", "sppo_hard")

    @property
    def slopes(self) -> Slopes:
        """The loss's value and slopes at log-ratios of 0."""
        beta, smoothing = self.beta, self.label_smoothing
        if self.loss == "apo_down":
            return Slopes(1.0, 0.0, -beta / 4)
        value, slope = {
            "sigmoid": (log(2), beta / 2 * (1 - 2 * smoothing)),
            "sigmoid_norm": (log(2), beta / 2),
            "hinge": (1.0, beta),
            "ipo": (1 / (4 * beta**2), 1 / beta),
            "ipo_of_sums": (1 / (4 * beta**2), 1 / beta),
            "robust": (log(2), beta / 2 / (1 - 2 * smoothing)),
            "exo_pair": _exo(beta, smoothing),
            "nca_pair": (2 * log(2), beta / 4),
            "bco_pair": (2 * log(2), beta / 2),
            "sppo_hard": (1 / (2 * beta**2), 1 / beta),
            "aot": (log(2), beta / 2 * (1 - 2 * smoothing)),
            "aot_unpaired": (log(2), beta / 2 * (1 - 2 * smoothing)),
            "apo_zero": (1.0, beta / 4),
            "kto": (0.5, beta / 8),  # for a pair: half of each answer's
            "apo_zero_unpaired": (0.5, beta / 8),
        }[self.loss]
        return Slopes(value, slope, -slope)

    @property
    def text(self) -> str:
        """The loss in words."""
        smoothing = f" and label smoothing {self.label_smoothing:g}" if self.label_smoothing else ""
        mean = "pairs" if self.is_paired else "answers"
        return f"the preference loss {self.loss} with beta {self.beta:g}{smoothing}, the mean over {mean}"


def _exo(beta: float, smoothing: float) -> tuple[float, float]:
    """Return the value and slope of EXO's loss, which is undefined without label smoothing."""
    if not 0 < smoothing < 1:
        return 0.0, 0.0
    return -log(2) - log(smoothing * (1 - smoothing)) / 2, beta / 4 * log((1 - smoothing) / smoothing)
