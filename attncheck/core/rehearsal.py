"""Plain data of a rehearsal: how a launch is scaled down, and the job's objective as its framework documents it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from attncheck.core.preferences import COUPLED_LOSSES, Preference

# Which tokens are learned: whole documents, answers only, or those that the user's own script labels or rows choose.
Targets = Literal["all", "assistant", "last", "labelled", "chosen"]
FREE: tuple[Targets, ...] = ("labelled", "chosen")  # any turn may be learned
# How a row names its images: in a column "images", or there and by a tag in its text as well; "": it has none.
Pictures = Literal["", "column", "tagged", "parts"]
# How a data row names a document's turns; "every": in all these ways at once, for a script that uses one of them.
DataForm = Literal[
    "messages",
    "text",
    "prompt_completion",
    "instruction",
    "nested_instruction",  # the same as the parts of a column, "row"
    "conversations",
    "every",
    "preference",  # a prompt, a chosen and a rejected answer, each a list of messages
    "preference_text",  # the same as texts
    "implicit_preference",  # a chosen and a rejected conversation, which begin with the prompt
    "answers",  # each answer of such a pair is a row with a text and a label, as for KTO
    "rejected_response",  # messages that end in the chosen answer, and the rejected one as a text, as in ms-swift
    "prompts",  # only the prompt of such a pair, a list of messages; the answer is generated
    "prompt_texts",  # the same as a text, under each name that scripts use for it
]
PAIRED_FORMS: tuple[DataForm, ...] = (
    "preference",
    "implicit_preference",
    "preference_text",
    "answers",
    "rejected_response",
    "prompts",
    "prompt_texts",
)
# The names under which scripts read a problem, and the answer to it, from a row that is not a list of messages.
PROMPT_COLUMNS = ("prompt", "problem", "question", "query", "instruction")
ANSWER_COLUMNS = ("solution", "answer", "ground_truth", "response", "completion")
# Beginnings of a field's shape, before JSON: the keys of a script's table, the shape of its content, a text's marker.
KEY, JSON_TEXT, MARKED, CHOICE = "key of ", "json ", "text with ", "one of "
TEXT_COLUMNS = frozenset((*PROMPT_COLUMNS, *ANSWER_COLUMNS, "text", "input", "output", "conversations"))
# What the loss of a step averages. Each mean is a weight for every target token.
Normalisation = Literal[
    "step_tokens",  # all targets of the step, over batches and ranks
    "step_labels",  # the same sum over every label, including a row's first, which nothing predicts
    "rank_tokens",  # over a rank's targets, then across ranks
    "rank_labels",  # the same sums over every label of the rank
    "batch_tokens",  # over a batch's targets, then across batches and ranks
    "group_tokens",  # over the targets of all ranks' batches at once, then across batches
    "batch_rows",  # as batch_tokens, each batch weighted by its documents
    "row_tokens",  # over a row's targets, then over rows
    "document_tokens",  # over a document's targets, then over documents
    "document_sums",  # over documents, each the sum over its targets
    "batch_positions",  # over all of a batch's positions, also those without a target, then across batches and ranks
]
# All that an author may intend.
NORMALISATIONS: tuple[Normalisation, ...] = tuple(n for n in get_args(Normalisation) if n != "batch_positions")
NORMALISATION_TEXTS: Mapping[Normalisation, str] = {
    "step_tokens": "the mean over all target tokens of the step",
    "step_labels": (
        "the sum over the step's target tokens divided by the number of its labels, including each row's first"
    ),
    "rank_tokens": "the mean over each rank's target tokens, averaged across ranks",
    "rank_labels": ("each rank's sum over target tokens divided by its number of labels, averaged across ranks"),
    "batch_tokens": "the mean over each batch's target tokens, averaged over batches",
    "group_tokens": "the mean over the target tokens that all ranks have in a batch, averaged over batches",
    "batch_rows": "the mean over each batch's target tokens, averaged over batches by their documents",
    "row_tokens": "the mean over each row's target tokens, averaged over rows",
    "document_tokens": "the mean over each document's target tokens, averaged over documents",
    "document_sums": "the sum over each document's target tokens, averaged over documents",
    "batch_positions": "each batch's sum over target tokens divided by all its positions, ignored and padding too",
}


@dataclass(frozen=True)
class PolicyGradient:
    """A loss of responses with advantages: its gradients at the first step are those of the weighted −log p.

    With `of_ratio` it averages −advantage × p / (p before the step), whose value at that step is −advantage. Otherwise
    it averages −advantage × log p. With `is_sum` it is the sum over target tokens, not their mean. The whole is divided
    by `divisor`.
    """

    of_ratio: bool = True
    is_sum: bool = False
    divisor: float = 1.0
    temperature: float = 1.0  # the logits are divided by it

    def describe(self, mean: str) -> str:
        """Return the loss in words; `mean` describes the mean of −log p that it would otherwise be."""
        whole = "the sum over all target tokens of the step" if self.is_sum else mean
        over = f", over {self.divisor:g}" if self.divisor != 1 else ""
        return f"{whole}, of -advantage × {'ratio' if self.of_ratio else 'log p'}{over}"


@dataclass(frozen=True)
class TokenLoss:
    """The loss of one target token, if it is not plain -log p."""

    smoothing: float = 0.0  # weight of the mean of -log p over the whole vocabulary
    by_probability: bool = False  # -p log p, with p excluded from the gradient: dynamic fine-tuning (DFT)

    @property
    def text(self) -> str:
        """The words to append to the description of a loss."""
        smoothed = f", labels smoothed by {self.smoothing:g}" if self.smoothing else ""
        return f"{smoothed}{', each weighted by its probability (DFT)' if self.by_probability else ''}"


@dataclass(frozen=True)
class Objective:
    """The objective of a job, as its framework documents it: the target tokens, and the mean that is the loss.

    `normalisations` are those that this release documents, or all if nothing is documented. If several agree on a
    batch, the first is assumed. If the data are pairs, `preference` is the loss of a pair, and defines its own mean.
    """

    targets: Targets = "all"
    normalisations: tuple[Normalisation, ...] = ("step_tokens",)
    source: str = ""  # where that is documented: "transformers 5.17.0 trainer.py (average_tokens_across_devices)"
    policy: PolicyGradient | None = None  # of reinforcement learning: the loss that the mean is taken over
    preference: Preference | None = None
    is_documented: bool = True  # False: only the script's author knows what is optimised
    token_loss: TokenLoss = TokenLoss()
    is_mean: bool = True  # False: an undocumented loss of pairs; near a mean over tokens it is so by coincidence

    @property
    def couples_rows(self) -> bool:
        """Whether a row's part of the loss depends on the others of its micro-batch, as documented."""
        if self.preference is not None:  # its weight is that of a mean over a micro-batch's tokens
            return self.preference.loss in COUPLED_LOSSES or bool(self.preference.chosen_weight)
        return self.is_documented and self.normalisations[0].partition("_")[0] in ("batch", "group")

    @property
    def text(self) -> str:
        """The loss in words."""
        if not self.is_documented:
            return "a mean over target tokens, as its author defines it"
        if self.preference is not None:
            return self.preference.text
        mean = NORMALISATION_TEXTS[self.normalisations[0]]
        return self.policy.describe(mean) if self.policy is not None else f"{mean}{self.token_loss.text}"


# The objective of a loss that only its author knows: labelled tokens are learned, by any mean.
UNDOCUMENTED = Objective("labelled", NORMALISATIONS, is_documented=False)

TEXT_ONLY = "its rows contain only text"  # of a model that takes images: begins a remark

JOB_FOLDER = "job"  # inside a rehearsal's folder: the only folder that the launch may write to
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
    """How a rehearsed command was isolated from the user's files and the network, and what it wrote outside its folder.

    `written` and `removed` are paths that an overlay protected; `denied` are paths that could not be written.
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
        """The isolation in words."""
        return f"isolation: {FILES_TEXTS[self.files]}; {NETWORK_TEXTS[self.network]}"


DATA_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt")  # endings of files that rows can be read from


@dataclass(frozen=True)
class Materials:
    """The folders and numbers that a scaled-down launch uses."""

    model: str  # folder with the small model and its tokenizer
    data: str  # folder with the documents, in the format of `JobCut.form`
    output: str  # folder for the job's output
    steps: int
    max_length: int  # tokens per row
    batch: int  # rows per batch on a device
    accumulation: int  # batches per step
    uses_gpu: bool  # whether there is a GPU
    processes: int = 1  # how many processes the launch may start
    ring_size: int = 1  # ranks that share a row
    full_model: bool = False  # the model is the user's own, whole, with its tokenizer
    real_data: bool = False  # the rows are the user's own
    # the launch's own setting stays if True; otherwise it is off, also in the scaled-down command
    trust_remote_code: bool = False
    has_tower: bool = False  # whether the launch's model has one, for images or sound

    def alias(self, model: str) -> str:
        """Return a path for the small model that ends with the name of the user's model."""
        name = os.path.basename(os.path.normpath(model)) if model else "model"
        return os.path.join(os.path.dirname(self.model), "models", name)

    def name_data(self, name: str) -> str:
        """Return where the first rows of the named data are written: a file of that name, or the data's folder."""
        return f"{self.data}/{os.path.basename(name)}" if name.endswith(DATA_ENDINGS) else self.data

    def choose_rows(self, named: str, made: str) -> str:
        """Return the file or folder of rows that the launch reads: of the named data, or made ones."""
        return self.name_data(named) if self.real_data else made

    @property
    def documents(self) -> str:
        """The file of documents as words with their speakers, from which a driver makes rollouts."""
        return os.path.join(os.path.dirname(self.model), "documents.json")

    @property
    def parquet_file(self) -> str:
        """The documents' file in Parquet format, written if the environment has pyarrow."""
        return f"{self.data}/train.parquet"

    @property
    def data_file(self) -> str:
        """The documents' file, with one JSON object per line."""
        return f"{self.data}/train.jsonl"

    @property
    def json_file(self) -> str:
        """The same lines under another name, outside the data's folder because `load_dataset` would read them twice."""
        return os.path.join(os.path.dirname(self.model), "array", "train.json")

    @property
    def list_file(self) -> str:
        """A YAML list of data sets that has these lines alone, as scripts of LLaVA's family read it."""
        return self.json_file.replace(".json", ".yaml")

    @property
    def table_file(self) -> str:
        """The documents as CSV; what is not a text is JSON in it."""
        return self.json_file.replace(".json", ".csv")


@dataclass(frozen=True)
class JobCut:
    """How a framework's launch is scaled down: settings in its own names, and the form of its data.

    `sets` maps a setting's name to its value, or to `core.job.DROP`. `command` starts the framework with a
    configuration file if the launch consists of nothing else. "{file}" represents the file, "{folder}" and "{stem}" its
    parts.
    """

    sets: Mapping[str, str]
    form: DataForm
    objective: Objective
    environ: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # files next to the data: name to text
    # options of the user's script, as the launch writes them
    options: Mapping[str, str] = field(default_factory=dict)
    # flash-attn 2 in plain torch, which the launch's processes import as `flash_attn`
    emulates_flash_attn: bool = False
    model_alias: str = ""  # a second path to the model, for a framework that reads its name
    program: str = ""  # the framework's own program, which replaces the launch's
    foreign: tuple[str, ...] = ()  # keys of the launch's file that the framework's program does not accept
    driver: str = ""  # the module of `attncheck.rehearsal.drivers` that takes over the launch once it is configured
    remarks: tuple[str, ...] = ()  # replacements that the rehearsal makes
    ring_size: int = 1  # ranks that share a row in the rehearsal
    whole_rows: str = ""  # why a rank has whole rows on this machine although the launch splits them; "": it does not
    data: str = ""  # the file, folder or repository that the launch names, if its rows can be used
    # columns of such rows by role, in the order of turns, if the launch names them; a part of one: "extra.question"
    roles: Mapping[str, str] = field(default_factory=dict)
    pictures: Pictures = ""  # how rows may have images, if the model takes them
    corrections: tuple[Mapping[str, str], ...] = ()  # settings that may fix documents that mix, the most likely first
    rank_corrections: tuple[Mapping[str, str], ...] = ()  # settings that may fix a loss that differs across ranks
