"""The installed transformers cannot build the model from its config.json.

What it checks: the model's class in the installed transformers is built from config.json, without weights and without
the model's own code, in a child process. If that raises, it is built again without each field in turn: the finding
names the fields without which it can be built.

Why it matters: `from_pretrained` builds the same class in the same way and raises the same error on every rank, after
the job was queued. Examples are a pad_token_id past the vocabulary ("Padding_idx must be within num_embeddings"), a
rope_type or an activation that this release does not know (KeyError), and a hidden size that is not a multiple of the
heads.

What to do: correct the named field. A token id, a dtype or `architectures` can be removed. A size must match the
checkpoint. A rope_type that this transformers does not know needs a newer release.

Source: the observation itself; transformers 5.17.0, modeling_utils.py (`_from_config`, which `from_pretrained`
shares). Tested with it: llama with pad_token_id = vocab_size, rope_type "llama9", hidden size 4100 of 32 heads, an
unknown activation, layer_types of the wrong length, another model's architecture. Each can be built once the field is
corrected (tests/doctor/test_model_accepts.py).
"""

from attncheck.core.model import BuildFailure, Model
from attncheck.doctor.rules import Fix, Known, MissingFact, Problem, Problems, Rule, Snapshot, Unreadable, about_model

# Not compared with the model: code that needs real tensors, and answers that other rules report.
NOT_ON_META = ("meta tensor", "meta device", "data-dependent")
REPORTED_ELSEWHERE = (
    "brings its own code",
    "does not know model_type",
    "import lane did not run",
    "names no model_type",
)
# Fields that may be left out; the class then has none, or the weights determine them.
REMOVABLE = ("pad_token_id", "eos_token_id", "bos_token_id", "torch_dtype", "dtype", "architectures")


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.build_failure, Known):
        _skip_unless_answered(model)
        return
    failure = model.build_failure.value
    if any(word in failure.error for word in NOT_ON_META):
        raise MissingFact(f"could not check whether the model can be built: {failure.error}")
    version = snapshot.version("transformers")
    release = f"transformers {version.value}" if isinstance(version, Known) else "the installed transformers"
    yield Problem(
        message=f"{release} cannot build {model.model_type} from config.json of {model.source}: {failure.error}",
        evidence=(
            "import lane: the class was built without weights, as from_pretrained does",
            *(f"it can be built without {name}: {value}" for name, value in failure.fields.items()),
        ),
        fixes=tuple(_correct_field(name, failure, model) for name in failure.fields),
        subject=model.source,
    )


def _skip_unless_answered(model: Model) -> None:
    """Raise `MissingFact` if querying the class gave no result, which no other rule reports."""
    if not isinstance(model.accepts, Unreadable) or not model.accepts.reason:
        return
    if not any(phrase in model.accepts.reason for phrase in REPORTED_ELSEWHERE):
        raise MissingFact(f"could not check which attention the model accepts: {model.accepts.reason}", ("ATN154",))


def _correct_field(path: str, failure: BuildFailure, model: Model) -> Fix:
    name = path.rpartition(".")[2]
    value = failure.fields[path]
    if name in REMOVABLE:
        text = f'config.json: remove "{name}": {value}'
    elif name in ("rope_scaling", "rope_parameters"):
        text = f'config.json: complete "{name}": {value}, or a release of transformers that knows it (not tried)'
    else:
        text = f'config.json: "{name}": use the checkpoint\'s own value instead of {value}'
    return Fix(f"correct {path}", "edit", text, proven=f"{model.model_type} was built without {path}")


RULE = Rule("ATN348", "error", check)
