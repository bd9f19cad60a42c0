"""A rehearsal's plain data: what a launch is cut to, and what the job's objective is, as its framework documents it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from attncheck.core.preferences import Preference

# Which tokens are learned: whole documents, answers only, or those that the user's own script labels.
Targets = Literal["all", "assistant", "last", "labelled"]
# How a row names its pictures: in a column "images", or there and by a tag in its text as well; "": it has none.
Pictures = Literal["", "column", "tagged"]
# How a row of the data names a document's turns; "every": in all these ways at once, for a script that takes one.
DataForm = Literal[
    "messages",
    "text",
    "prompt_completion",
    "instruction",
    "conversations",
    "every",
    "preference",  # a prompt, a chosen and a rejected answer, each a list of messages
    "preference_text",  # the same as texts
    "rejected_response",  # messages that end in the chosen answer, and the rejected one as a text: ms-swift's
    "prompts",  # of such pairs the prompt, a list of messages; what answers it is generated
    "prompt_texts",  # the same as a text, under each name that scripts read it by
]
PAIRED_FORMS: tuple[DataForm, ...] = ("preference", "preference_text", "rejected_response", "prompts", "prompt_texts")
# What the loss of a step is the mean of. Each is a weight for every target token.
Normalisation = Literal[
    "step_tokens",  # all targets of the step, over batches and ranks
    "step_labels",  # the same sum over every label, including a row's first, which nothing predicts
    "rank_tokens",  # of a rank's targets, then of ranks
    "rank_labels",  # the same sums over every label of the rank
    "batch_tokens",  # of a batch's targets, then of batches and ranks
    "row_tokens",  # of a row's targets, then of rows
    "document_tokens",  # of a document's targets, then of documents
    "document_sums",  # of documents, each the sum over its targets
]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
NORMALISATION_TEXTS: Mapping[Normalisation, str] = {
    "step_tokens": "the mean over all target tokens of the step",
    "step_labels": (
        "the sum over the step's target tokens divided by the number of its labels, including each row's first"
    ),
    "rank_tokens": "the mean over each rank's target tokens, averaged across ranks",
    "rank_labels": ("each rank's sum over target tokens divided by its number of labels, averaged across ranks"),
    "batch_tokens": "the mean over each batch's target tokens, averaged over batches",
    "row_tokens": "the mean over each row's target tokens, averaged over rows",
    "document_tokens": "the mean over each document's target tokens, averaged over documents",
    "document_sums": "the sum over each document's target tokens, averaged over documents",
}


@dataclass(frozen=True)
class PolicyGradient:
    """A loss of responses that have advantages: its gradients at the first step are the weighted −log p's.

    `of_ratio`: what is averaged is −advantage × p / (p before the step), whose value is −advantage there; else it is
    −advantage × log p. `is_sum`: it is the sum over target tokens, not their mean. The whole is divided by `divisor`.
    """

    of_ratio: bool = True
    is_sum: bool = False
    divisor: float = 1.0
    temperature: float = 1.0  # that divides the logits

    def describe(self, mean: str) -> str:
        """Return the loss in words; `mean` is what it would be of −log p."""
        whole = "the sum over all target tokens of the step" if self.is_sum else mean
        over = f", over {self.divisor:g}" if self.divisor != 1 else ""
        return f"{whole}, of -advantage × {'ratio' if self.of_ratio else 'log p'}{over}"


@dataclass(frozen=True)
class TokenLoss:
    """The loss of one target token, if it is not just -log p."""

    smoothing: float = 0.0  # the share of the mean of -log p over the whole vocabulary
    by_probability: bool = False  # -p log p, p without a gradient: dynamic fine-tuning, DFT

    @property
    def text(self) -> str:
        """The text of an addition to a loss."""
        smoothed = f", labels smoothed by {self.smoothing:g}" if self.smoothing else ""
        return f"{smoothed}{', each weighted by its probability (DFT)' if self.by_probability else ''}"


@dataclass(frozen=True)
class Objective:
    """The objective of a job, as its framework documents it: the target tokens, and the mean that is the loss.

    `normalisations` are those that this release documents, or all if nothing does; the first one is assumed if
    several agree on a batch. If the data are pairs, `preference` is the loss of a pair, and defines its own mean.
    """

    targets: Targets = "all"
    normalisations: tuple[Normalisation, ...] = ("step_tokens",)
    source: str = ""  # where that is documented: "transformers 5.17.0 trainer.py (average_tokens_across_devices)"
    policy: PolicyGradient | None = None  # of reinforcement learning; the mean is then of what it says
    preference: Preference | None = None
    is_documented: bool = True  # False: no one but its author says what is optimised
    token_loss: TokenLoss = TokenLoss()

    @property
    def text(self) -> str:
        """The loss in words."""
        if not self.is_documented:
            return "a mean over target tokens, as its author defines it"
        if self.preference is not None:
            return self.preference.text
        mean = NORMALISATION_TEXTS[self.normalisations[0]]
        return self.policy.describe(mean) if self.policy is not None else f"{mean}{self.token_loss.text}"


# Of a loss that no one but its author knows: what is labelled is learnt, by any mean.
UNDOCUMENTED = Objective("labelled", NORMALISATIONS, is_documented=False)

JOB_FOLDER = "job"  # of a rehearsal's folder: the only one that the launch may write to
FilesBy = Literal["overlay", "read-only", "landlock", "none"]
NetworkBy = Literal["namespace", "ports", "environment"]
ProcessesBy = Literal["namespace", "subreaper"]
FILES_TEXTS: Mapping[FilesBy, str] = {
    "overlay": "files outside its folder are read-only or overlaid",
    "read-only": "files outside its folder are read-only",
    "landlock": "files outside its folder are read-only (Landlock)",
    "none": "files outside its folder are NOT protected",
}
NETWORK_TEXTS: Mapping[NetworkBy, str] = {
    "namespace": "no network",
    "ports": "no TCP port below 1024 can be reached",
    "environment": "the network is switched off only by environment variables",
}


@dataclass(frozen=True)
class Isolation:
    """How a rehearsed command was kept from the user's files and the network, and what it wrote outside its folder.

    `written` and `removed` are paths that an overlay kept from the user's files; `denied` could not be written.
    """

    files: FilesBy = "none"
    network: NetworkBy = "environment"
    processes: ProcessesBy = "subreaper"
    overlaid: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """How it was isolated, in words."""
        return f"isolation: {FILES_TEXTS[self.files]}; {NETWORK_TEXTS[self.network]}"


DATA_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt")  # of files whose first rows can be taken


@dataclass(frozen=True)
class Materials:
    """The folders and numbers that a cut launch is pointed at."""

    model: str  # folder of the small model and its tokenizer
    data: str  # folder of the documents, in the format of `JobCut.form`
    output: str  # folder that takes what the job writes
    steps: int
    max_length: int  # tokens of a row
    batch: int  # rows of a batch on a device
    accumulation: int  # batches to a step
    uses_gpu: bool  # whether there is one
    processes: int = 1  # that the launch may start at most
    ring_size: int = 1  # ranks that share a row
    full_model: bool = False  # the model is the user's own, whole, with its tokenizer
    real_data: bool = False  # the rows are the user's own
    trust_remote_code: bool = False  # what the launch says of it stays; else it is off, also in the cut command
    has_tower: bool = False  # the launch's model has one, for pictures or sound

    def alias(self, model: str) -> str:
        """Return a path for the small model that ends as the name of the user's own model does."""
        name = os.path.basename(os.path.normpath(model)) if model else "model"
        return os.path.join(os.path.dirname(self.model), "models", name)

    def name_data(self, name: str) -> str:
        """Return where the first rows of the data of this name are written: a file of that name, or the data's
        folder."""
        return f"{self.data}/{os.path.basename(name)}" if name.endswith(DATA_ENDINGS) else self.data

    @property
    def documents(self) -> str:
        """The documents as words, by who speaks them: what a driver makes rollouts of."""
        return os.path.join(os.path.dirname(self.model), "documents.json")

    @property
    def parquet_file(self) -> str:
        """The documents in Parquet format, if the environment has pyarrow to write it."""
        return f"{self.data}/train.parquet"

    @property
    def data_file(self) -> str:
        """The documents' file, with one JSON object per line."""
        return f"{self.data}/train.jsonl"

    @property
    def json_file(self) -> str:
        """The documents as one JSON array; not in the data's folder, where `load_dataset` would take them twice."""
        return os.path.join(os.path.dirname(self.model), "array", "train.json")


@dataclass(frozen=True)
class JobCut:
    """How a framework's launch is scaled down: settings in its own names, and what its data must look like.

    `sets` maps a setting's name to its value, or to `core.job.DROP`. `command` starts the framework on a configuration
    file where the launch is nothing but that file; "{file}" represents it, "{folder}" and
    "{stem}" for its parts.
    """

    sets: Mapping[str, str]
    form: DataForm
    objective: Objective
    environ: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # that are alongside the data: name to text
    options: Mapping[str, str] = field(default_factory=dict)  # of the user's own script, as the launch writes them
    emulates_flash_attn: bool = False  # flash-attn 2 in plain torch, which the launch's processes find as `flash_attn`
    model_alias: str = ""  # a path that is to lead to the model too: what a framework reads in its name stays so
    program: str = ""  # the framework's own, which represents the launch's
    foreign: tuple[str, ...] = ()  # keys of the launch's file that the framework's program does not take
    driver: str = ""  # the module of `attncheck.rehearsal.drivers` that takes the launch over once it is configured
    remarks: tuple[str, ...] = ()  # what represents something else here
    ring_size: int = 1  # ranks that share a row here
    whole_rows: str = ""  # why a rank has whole rows on this machine, although the launch splits them; "": it does not
    data: str = ""  # the file, folder or repository that the launch names, if its rows can be the user's own
    pictures: Pictures = ""  # how rows may have pictures, if the model takes them
    corrections: tuple[Mapping[str, str], ...] = ()  # settings that may fix what mixes, the likeliest first
    rank_corrections: tuple[Mapping[str, str], ...] = ()  # settings that may fix a loss that differs across ranks
