"""Losses of pairs of answers: their values and slopes, if the policy is its own reference or if there is none.

A preference loss depends on how much likelier the policy makes each answer than its reference does. At the first step
the two are one model, so the log-ratios are 0. The loss is its value there, and its gradient is a weighted sum of the
gradients of the answers' −log p. Sources: trl 1.16.0 trainer/dpo_trainer.py `_compute_loss`, a branch for each loss
type (`loss += per_sequence_loss.mean()`: the mean over a batch's pairs). Losses without a reference depend on the
policy's own log-probabilities: experimental/cpo/cpo_trainer.py `cpo_loss`, llamafactory 0.9.5 train/dpo/trainer.py
`odds_ratio_loss`. Not included: TRL's ORPO, which also trains on the prompt, and losses whose slopes at 0 depend on
more than beta and the label smoothing.
"""

from dataclasses import dataclass
from math import exp, log, log1p
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
    "bco",  # trl 0.24.0 trainer/bco_trainer.py `bco_loss`, without weights for another distribution of prompts
    "simpo",  # without a reference: trl 1.16.0 experimental/cpo
    "orpo",  # without a reference: beta times the loss of the odds ratio; the chosen answers' own loss is added
]
PREFERENCE_LOSSES: tuple[PreferenceLoss, ...] = get_args(PreferenceLoss)
COUPLED_LOSSES = ("kto", "aot", "aot_unpaired")  # an answer's part is defined by its micro-batch
UNPAIRED_LOSSES = ("kto", "apo_zero_unpaired", "bco")  # the mean over answers, in any combination in a batch
# these use an answer's mean log-probability per token; the others use the sum
AVERAGED_LOSSES = ("ipo", "sigmoid_norm", "simpo", "orpo")
FREE_LOSSES: tuple[PreferenceLoss, ...] = ("sigmoid", "hinge", "ipo", "simpo", "orpo")  # known without a reference


@dataclass(frozen=True)
class Slopes:
    """A pair's loss, and its slope per nat of each answer's −log p."""

    value: float
    chosen: float
    rejected: float


@dataclass(frozen=True)
class Preference:
    """The loss of a job that trains on pairs: its name as TRL writes it, and its parameters.

    Without a reference, `gamma` is the margin that a chosen answer must have. `chosen_weight` multiplies the chosen
    answers' own loss, which is added: the mean of -log p over the tokens of a batch, or with `averages_chosen` over
    each answer's tokens, then over answers.
    """

    loss: PreferenceLoss = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    has_reference: bool = True
    gamma: float = 0.0
    chosen_weight: float = 0.0
    averages_chosen: bool = False

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
            "bco": (log(2), beta / 4),
            "simpo": (log(2), beta / 2),
            "orpo": (log(2) * beta, beta / 2),  # of the odds
        }[self.loss]
        return Slopes(value, slope, -slope)

    def measure(self, chosen: float, rejected: float) -> Slopes:
        """Return the value and slopes without a reference, at these log-probabilities."""
        beta, margin = self.beta, chosen - rejected
        if self.loss == "orpo":  # the odds of a probability p are p / (1 - p)
            logit = margin - log1p(-exp(chosen)) + log1p(-exp(rejected))
            slope = beta / (1 + exp(min(700.0, logit)))
            return Slopes(beta * _soft_plus(-logit), slope / (1 - exp(chosen)), -slope / (1 - exp(rejected)))
        if self.loss == "hinge":
            value, slope = max(0.0, 1 - beta * margin), beta if beta * margin < 1 else 0.0
        elif self.loss == "ipo":
            distance = margin - 1 / (2 * beta)
            value, slope = distance**2, -2 * distance
        else:
            logit, smoothing = beta * margin - self.gamma, self.label_smoothing
            right = 1 / (1 + exp(-max(-700.0, min(700.0, logit))))
            value = _soft_plus(-logit) * (1 - smoothing) + _soft_plus(logit) * smoothing
            slope = beta * ((1 - right) * (1 - smoothing) - right * smoothing)
        return Slopes(value, slope, -slope)

    @property
    def text(self) -> str:
        """The loss in words."""
        smoothing = f" and label smoothing {self.label_smoothing:g}" if self.label_smoothing else ""
        mean = "pairs" if self.is_paired else "answers"
        free = "" if self.has_reference else ", without a reference"
        gamma = f", a margin of {self.gamma:g}" if self.gamma else ""
        chosen = f", plus {self.chosen_weight:g} times that of the chosen answers" if self.chosen_weight else ""
        text = f"the preference loss {self.loss} with beta {self.beta:g}{smoothing}, the mean over {mean}"
        return f"{text}{free}{gamma}{chosen}"


def _soft_plus(number: float) -> float:
    return max(number, 0.0) + log1p(exp(-abs(number)))


def _exo(beta: float, smoothing: float) -> tuple[float, float]:
    """Return the value and slope of EXO's loss, which is undefined without label smoothing."""
    if not 0 < smoothing < 1:
        return 0.0, 0.0
    return -log(2) - log(smoothing * (1 - smoothing)) / 2, beta / 4 * log((1 - smoothing) / smoothing)
