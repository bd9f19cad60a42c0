"""How much a rollout engine and a trainer differ: a table of distances, and what explains them."""

from collections.abc import Iterator

from attncheck.core.results.agree import AgreedModel, AgreeSection, Distance
from attncheck.report.sections import Block, Bullets, Heading, Paragraph, Report, SectionView, text_table

LAYOUTS = {
    "packed": "packed rows with position_ids",
    "right": "rows padded on the right",
    "left": "prompts padded on the left",
}
TITLES = {
    "both": "engine and trainer",
    "engine": "engine, different batch shape",
    "trainer": "trainer, different batch shape",
}
HEAD = ("|Δ log p|", "mean", "p99", "largest", "ratio beyond ±10%", "beyond clip", "bitwise")


def blocks(report: Report, section: AgreeSection) -> Iterator[Block]:
    """Yield each model's distances, and the settings that they were measured with."""
    for model in section.models:
        yield Heading(
            " · ".join(filter(None, (model.name, model.job, model.model if model.model != model.name else "")))
        )
        if model.remarks or model.notes:
            yield Bullets((*model.remarks, *model.notes))
        if model.reason or model.distance is None:
            yield Paragraph(f"unknown: {model.reason}")
            continue
        yield Bullets(tuple(_describe_sides(model)))
        yield text_table(f"Log-probabilities of {model.distance.tokens} tokens, in nats", HEAD, list(_iter_rows(model)))
        yield Bullets(tuple(_describe_result(model)))


def _describe_sides(model: AgreedModel) -> Iterator[str]:
    rollout, scoring = model.rollout, model.scoring
    sampling = [f"temperature {rollout.temperature:g}"]
    sampling += [f"top_p {rollout.top_p:g}"] if rollout.top_p < 1 else []
    sampling += [f"top_k {rollout.top_k}"] if rollout.top_k else []
    sampling += [f"min_p {rollout.min_p:g}"] if rollout.min_p else []
    kind = f"{rollout.log_probabilities} log-probabilities"
    yield f"engine: {model.engine_version}, {rollout.precision}, {', '.join(sampling)}, {kind}"
    attention = scoring.attn_implementation or "transformers' own attention"
    temperature = f"temperature {scoring.temperature:g}"
    yield f"trainer: {scoring.precision}, {attention}, {LAYOUTS[scoring.layout]}, {temperature}"


def _iter_rows(model: AgreedModel) -> Iterator[tuple[str, ...]]:
    for distance in model.distances:
        yield TITLES[distance.of], *_format_distance(distance)


def _format_distance(distance: Distance) -> tuple[str, ...]:
    numbers = (f"{value:.2g}" for value in (distance.mean, distance.p99, distance.largest))
    shares = (f"{share:.1%}" for share in (distance.beyond_tenth, distance.beyond_clip))
    return *numbers, *shares, "yes" if distance.bitwise else "no"


def _describe_result(model: AgreedModel) -> Iterator[str]:
    assert model.distance is not None
    yield (
        f"root mean square {model.distance.rms:.2g}; the floor and rounding explain {model.limit:.2g} "
        f"(engine against the exact values {model.engine_error:.2g}, its rounding {model.engine_rounding:.2g}; "
        f"trainer {model.trainer_error:.2g}, {model.trainer_rounding:.2g})"
    )
    if model.kl_tokens:
        yield (f"KL over the whole vocabulary: {model.kl:.2g} nats per token, over {model.kl_tokens} tokens")
    if model.first_layer:
        yield f"first hidden states that differ beyond rounding: {model.first_layer}, of {model.layers}"
    elif model.layers:
        yield f"no layer's hidden states differ beyond rounding, of {model.layers}"
    differing, layers = model.routed_layers
    if layers:
        yield f"{model.routes_differ:.1%} of tokens go to different experts, in {differing} of {layers} layers"
    for cause in model.causes:
        yield f"{cause.side}: {cause.text}" + (f" (explains {cause.explained:.1%})" if cause.explained else "")


def verdict(report: Report, section: AgreeSection) -> str:
    """Return whether engine and trainer compute the same."""
    known = [model for model in section.models if model.distance is not None]
    wrong = [model for model in known if model.differs]
    if not known:
        return "unknown whether engine and trainer compute the same"
    if wrong:
        return "the rollout engine and the trainer compute different log-probabilities"
    return "the rollout engine and the trainer compute the same, within rounding"


VIEW = SectionView("Rollout engine and trainer", blocks=blocks, verdict=verdict)
