"""How much the log-probabilities of a rollout engine and a trainer differ, and what explains it."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.report import OpenQuestion, Section

Side = Literal["engine", "trainer"]
BIAS_MULTIPLE = 3.0  # multiple of the expected mean of independent errors


@dataclass(frozen=True)
class Distance:
    """How much two lists of log-probabilities of the same tokens differ, in nats.

    `beyond_tenth` and `beyond_clip` are the shares of tokens whose ratio is outside [0.9, 1.1] and outside the clip
    range. `mean`, `rms`, `p99` and `largest` describe the absolute difference, `bias` is the mean difference. If `of`
    names one side, that side is compared with itself in another batch shape.
    """

    of: Literal["both", "engine", "trainer"]
    tokens: int
    bias: float
    mean: float
    rms: float
    p99: float
    largest: float
    beyond_tenth: float
    beyond_clip: float
    bitwise: bool


@dataclass(frozen=True)
class Cause:
    """A computed explanation: which side is wrong, what it computes instead, and the share of the difference explained.

    `remedy` says how to fix it, in the launch's own words if there is a launch.
    """

    side: Side
    name: str  # "temperature-not-applied"
    text: str
    explained: float  # 0 if the two sides' tokens are not the same, so that their values cannot be compared
    remedy: str = ""
    closes: bool = True  # whether the remaining difference is within the limit
    sets: bool = False  # whether the remedy changes settings of the launch


@dataclass(frozen=True)
class AgreedModel:
    """One model or launch: both sides' log-probabilities compared with each other and with the exact ones.

    `limit` is the largest root mean square that rounding and the floor explain. `reason` says why nothing was measured;
    it is "" if it was. `proof` is what the pair measures with the settings that fix its causes.
    """

    name: str  # "train.sh:3:1" or "llama"
    model: str
    job: str = ""  # "verl 0.9.1 grpo"
    rollout: Rollout = Rollout()
    scoring: Scoring = Scoring()
    own_code: bool = False  # whether the launch's own code scored; else its framework's source was reproduced
    distances: tuple[Distance, ...] = ()  # () if nothing was measured
    limit: float = 0.0
    engine_error: float = 0.0  # root mean square difference of each side from the exact values
    trainer_error: float = 0.0
    engine_rounding: float = 0.0  # the same for the same model in each side's precision
    trainer_rounding: float = 0.0
    precision_gap: float = 0.0  # root mean square difference between the model in the two precisions
    kl: float = 0.0  # nats per token, over the whole vocabulary
    kl_tokens: int = 0  # 0 if the engine does not return its logits
    first_layer: str = ""  # the first layer whose hidden states differ beyond rounding; "" if none does
    layers: int = 0  # number of layers compared
    routes_differ: float = 0.0  # share of tokens that a layer of the engine routes to different experts
    # layers in which any token's experts differ, out of those that choose experts
    routed_layers: tuple[int, int] = (0, 0)
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    engine_version: str = ""
    proof: str = ""  # "" if none was run
    is_closed: bool = False  # whether engine and trainer agree with those settings
    seconds: float = 0.0
    reason: str = ""

    def find_distance(self, of: Literal["both", "engine", "trainer"]) -> Distance | None:
        """Return the distance between the two sides, or between two runs of one side; None if it was not measured."""
        return next((distance for distance in self.distances if distance.of == of), None)

    @property
    def distance(self) -> Distance | None:
        """The distance between the two sides."""
        return self.find_distance("both")

    @property
    def differs(self) -> bool:
        """Whether the two sides differ by more than rounding and the noise floor explain, or have other tokens."""
        distance = self.distance
        if distance is None or self.causes:
            return distance is not None
        return not (distance.rms <= self.limit and abs(distance.bias) <= self.bias_limit)

    @property
    def bias_limit(self) -> float:
        """The largest mean difference that rounding explains; the errors of many tokens cancel."""
        tokens = self.distance.tokens if self.distance is not None else 1
        return float(BIAS_MULTIPLE * self.limit / max(tokens, 1) ** 0.5)


@dataclass(frozen=True)
class AgreeSection(Section):
    """What `attncheck agree` measured."""

    name: ClassVar[str] = "agree"
    models: tuple[AgreedModel, ...] = field(default=())

    @property
    def unanswered(self) -> tuple[OpenQuestion, ...]:
        """The models and launches that could not be measured."""
        return tuple(
            OpenQuestion(self.name, "unanswered", f"{model.name}: {model.reason}")
            for model in self.models
            if model.reason
        )


SECTION = AgreeSection
