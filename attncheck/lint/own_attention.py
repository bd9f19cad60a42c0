"""Checks a launch whose script registers its own attention function, by reading the script without running it."""

from collections.abc import Callable
from dataclasses import replace

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Source, SourceLocation
from attncheck.doctor.probes.payload.model.registered_attention import find_unmasked_attentions

NO_MASK = (
    "transformers 5.23.0 masking_utils.py, _preprocess_mask_arguments: an implementation that is not in"
    " ALL_MASK_ATTENTION_FUNCTIONS gets attention_mask=None"
)
ADVICE = 'transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("{0}", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])'


def add_own_attention(job: Job, launch: Launch, read_file: Callable[[str], Source | None]) -> Job:
    """Return the job with the problem that its script registers the attention it requests without a mask function."""
    name = job.plan.attn_implementation
    program = launch.words[0].text if launch.words else ""
    if not name or not program.endswith(".py"):
        return job
    source = read_file(program)
    line = find_unmasked_attentions(source.text).get(name) if source is not None else None
    if source is None or line is None:
        return job
    problem = SettingProblem(
        "wrong",
        f"{program} registers the attention {name!r} without a mask function, so padding and other "
        "documents are attended to",
        (NO_MASK,),
        SourceLocation(source.name, line),
        advice=ADVICE.format(name),
    )
    return replace(job, problems=(*job.problems, problem))
