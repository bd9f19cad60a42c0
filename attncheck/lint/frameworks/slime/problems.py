"""What slime refuses or ignores, each with the releases that do so; miles refuses the same (31f1ca9).

Read in the tags v0.1.0 to v0.3.1; lines of slime/utils/arguments.py are those of v0.3.1. A fork next to the launch
whose file lacks an assertion, or asserts it under other conditions, refuses nothing.
"""

from collections.abc import Callable, Iterator

from attncheck.lint.fields import Consequence, Fact, Known, SettingProblem, is_at_least
from attncheck.lint.frameworks.megatron.options import MODEL_PARALLEL_OPTIONS, MegatronReading
from attncheck.lint.frameworks.megatron.problems import find_size_problems

ARGUMENTS = "slime 0.3.1 utils/arguments.py"
EVALUATION_SINCE = "0.2.0"
IMPORTANCE_SINCE = "0.2.0"
GATHERED_SINCE = "0.3.0"  # --allgather-cp is refused for models without DeepSeek's sparse attention
PADDED = ("0.2.2", "0.3.1")  # --qkv-format, and the first release without it


def find_problems(options: MegatronReading, version: str, world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Yield what the release refuses or ignores, judged by what the launch sets."""
    yield from find_size_problems(options, world_size)
    for check in CHECKS:
        yield from check(options)
    yield from _check_batch_over_ranks(options, world_size)
    if is_at_least(version, EVALUATION_SINCE):
        yield from _check_intervals(options)
    if is_at_least(version, IMPORTANCE_SINCE) and options.is_on("use-rollout-logprobs") and options.is_on("use-tis"):
        yield _problem(
            options,
            "refuses",
            "--use-rollout-logprobs with --use-tis: AssertionError",
            "1796: assert not args.use_tis",
            "use-tis",
            advice="remove one of the two",
        )
    if is_at_least(version, GATHERED_SINCE):
        yield from _check_gathered(options)
    if is_at_least(version, PADDED[0]) and not is_at_least(version, PADDED[1]):
        yield from _check_padded(options)


def _problem(
    options: MegatronReading, consequence: Consequence, message: str, line: str, *names: str, advice: str = ""
) -> SettingProblem:
    return SettingProblem(consequence, message, (f"{ARGUMENTS}:{line}",), options.find_location(*names), advice=advice)


def _get_number(options: MegatronReading, name: str) -> float:
    """Return the number of an option; 0 if it is not set, not a number, or known only at run time."""
    try:
        return float(options.get_text(name) or 0)
    except ValueError:
        return 0.0


def _check_dynamic_batch(options: MegatronReading) -> Iterator[SettingProblem]:
    if not options.is_on("use-dynamic-batch-size"):
        return
    if not options.has_any("max-tokens-per-gpu"):
        yield _problem(
            options,
            "refuses",
            "--use-dynamic-batch-size without --max-tokens-per-gpu: AssertionError",
            "1809: assert args.max_tokens_per_gpu is not None",
            advice="--max-tokens-per-gpu 9216",
        )
    elif options.get_int("micro-batch-size", 1) > 1:  # 1 is the default
        yield _problem(
            options,
            "ignores",
            "--micro-batch-size has no effect with --use-dynamic-batch-size: --max-tokens-per-gpu decides",
            "1808",
            "micro-batch-size",
            advice="leave it out",
        )


def _check_penalties(options: MegatronReading) -> Iterator[SettingProblem]:
    if _get_number(options, "kl-coef") and _get_number(options, "kl-loss-coef"):
        yield _problem(
            options,
            "refuses",
            "--kl-coef and --kl-loss-coef are both above 0: AssertionError",
            "1787: assert not (args.kl_coef != 0 and args.kl_loss_coef != 0)",
            "kl-coef",
            advice="set one of them to 0",
        )


def _check_normalisation(options: MegatronReading) -> Iterator[SettingProblem]:
    estimator = options.get_text("advantage-estimator")
    if estimator.startswith("reinforce_plus_plus") and not options.is_on("normalize-advantages"):
        yield _problem(
            options,
            "refuses",
            f"--advantage-estimator {estimator} without --normalize-advantages: AssertionError",
            "1790: assert args.normalize_advantages",
            advice="--normalize-advantages",
        )


def _check_steps(options: MegatronReading) -> Iterator[SettingProblem]:
    steps, written = options.get_int("num-steps-per-rollout"), options.get_int("global-batch-size")
    prompts, samples = options.get_int("rollout-batch-size"), options.get_int("n-samples-per-prompt")
    if not prompts or (not samples and options.has_any("n-samples-per-prompt")):
        return
    samples = samples or 1
    if steps and written and prompts * samples // steps != written:
        yield _problem(
            options,
            "refuses",
            f"--global-batch-size {written} is not {prompts} prompts x {samples} samples / {steps} steps = "
            f"{prompts * samples // steps}: AssertionError",
            "1911: assert args.global_batch_size == global_batch_size",
            "global-batch-size",
            advice="leave --global-batch-size out",
        )


def _check_length_of_training(options: MegatronReading) -> Iterator[SettingProblem]:
    names = ("num-rollout", "num-epoch", "debug-rollout-only", "load-debug-rollout-data", "custom-config-path")
    if not options.has_any(*names):
        yield _problem(
            options,
            "refuses",
            "neither --num-rollout nor --num-epoch: AssertionError",
            "1940: assert args.num_rollout is not None",
            advice="--num-rollout 1000, or --num-epoch 1",
        )


def _check_intervals(options: MegatronReading) -> Iterator[SettingProblem]:
    if options.has_any("eval-interval") and not options.has_any("eval-prompt-data", "eval-config"):
        yield _problem(
            options,
            "refuses",
            "--eval-interval without --eval-prompt-data: AssertionError",
            "1782: if args.eval_interval is not None: assert args.eval_datasets",
            "eval-interval",
            advice="--eval-prompt-data NAME FILE",
        )
    if options.has_any("save-interval") and not options.has_any("save"):
        yield _problem(
            options,
            "refuses",
            "--save-interval without --save: AssertionError",
            "1785: if args.save_interval is not None: assert args.save is not None",
            "save-interval",
            advice="--save FOLDER",
        )


def _check_gathered(options: MegatronReading) -> Iterator[SettingProblem]:
    """Check --allgather-cp: it needs a model with sparse attention, which only its configuration shows."""
    ranks = options.get_int("context-parallel-size", 1)
    if options.is_on("allgather-cp") and ranks > 1 and not _may_be_sparse(options):
        message = (
            f"--allgather-cp with --context-parallel-size {ranks}: only models with sparse attention (DSA) support it"
        )
        source = "slime 0.3.1 slime/backends/megatron_utils/arguments.py:36: would silently scramble token order"
        yield SettingProblem(
            "refuses", message, (source,), options.find_location("allgather-cp"), advice="leave it out"
        )


def _may_be_sparse(options: MegatronReading) -> bool:
    name = options.get_text("hf-checkpoint").lower()
    return not name or "$" in name or "deepseek" in name or "glm" in name


def _check_padded(options: MegatronReading) -> Iterator[SettingProblem]:
    if options.get_text("qkv-format") == "bshd" and options.is_on("use-dynamic-batch-size"):
        message = "--qkv-format bshd with --use-dynamic-batch-size: AssertionError"
        source = "slime 0.2.2 slime/utils/arguments.py:1709: Please specify --micro-batch-size instead"
        yield SettingProblem(
            "refuses",
            message,
            (source,),
            options.find_location("qkv-format"),
            advice="remove --use-dynamic-batch-size, or use --qkv-format thd",
        )


def _check_batch_over_ranks(options: MegatronReading, world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Check the batch across ranks: Megatron counts the micro batches of a rank."""
    rows = options.get_int("global-batch-size")
    is_known = all(options.get_int(name) or not options.has_any(name) for name in MODEL_PARALLEL_OPTIONS)
    ranks = world_size.value // options.model_parallel_size if isinstance(world_size, Known) and is_known else 0
    if rows and ranks and rows % ranks:
        message = f"--global-batch-size {rows} is not divisible by {ranks} data-parallel ranks"
        source = "megatron-core 0.15.0 core/num_microbatches_calculator.py: global batch size is not divisible by"
        yield SettingProblem("refuses", message, (source,), options.find_location("global-batch-size"))


CHECKS: tuple[Callable[[MegatronReading], Iterator[SettingProblem]], ...] = (
    _check_dynamic_batch,
    _check_penalties,
    _check_normalisation,
    _check_steps,
    _check_length_of_training,
)
