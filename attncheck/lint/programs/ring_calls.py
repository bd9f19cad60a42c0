"""Checks how the user's own program calls ring-flash-attn, yunchang and DeepSpeed's Ulysses, from its syntax tree.

These libraries leave some tasks to the caller: divisible lengths, parameters before each forward, process groups. A
call counts as missing if none of the program's own modules has it. Another file may have it, so nothing here is an
error.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attncheck.core.findings import Fix, Problem
from attncheck.core.launch import SourceLocation
from attncheck.doctor.probes.payload.links.source import imported_modules
from attncheck.lint.programs.modules import SourceModule
from attncheck.lint.programs.syntax import list_nodes

RING, USP, ULYSSES = "ring_flash_attn", "yunchang", "UlyssesSPAttentionHF"
EVEN_SPLIT = (  # these split the length across the ranks with an assertion, or by slicing
    "update_ring_flash_attn_params", "llama3_flash_attn_prepare_cu_seqlens", "substitute_hf_flash_attn",
)  # fmt: skip
ZIGZAG = ("zigzag_ring_flash_attn_func", "zigzag_ring_flash_attn_varlen_func", "extract_local")
BASIC_RING = ("ring_flash_attn_func", "ring_flash_attn_qkvpacked_func", "ring_flash_attn_varlen_func")
USP_LAYERS = ("LongContextAttention", "UlyssesAttention", "LongContextAttentionQKVPacked", "AsyncLongContextAttention")
USP_GROUPS = ("set_seq_parallel_pg", "initialize_model_parallel", "init_distributed_environment")
NO_PADDING = ("pad_token", "pad_token_id", "padding_side", "padding", "unpad_input", "unpad")
TRAINS = ("backward", "Trainer", "SFTTrainer", "Accelerator")

PAD_CODE = """import torch
from torch.nn import functional as F
fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}  # before the rows are divided over the ranks
missing = -batch["input_ids"].shape[1] % MULTIPLE
batch = {name: F.pad(rows, (0, missing), value=fill.get(name, 0)) for name, rows in batch.items()}
batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])"""


class Calls(NamedTuple):
    """The names that a program's own modules use, with the first place of each."""

    names: dict[str, SourceLocation]
    attributes: frozenset[str]  # "AttnType.TORCH_MATH"
    imports: frozenset[str]  # the packages that it imports
    has_modulo: bool  # it checks the divisibility of some length itself

    def find(self, *names: str) -> SourceLocation | None:
        """Return the first place of one of the names; None if none is used."""
        return next((self.names[name] for name in names if name in self.names), None)


def collect_calls(modules: Sequence[SourceModule]) -> Calls:
    """Return the names that the modules of one program use."""
    names: dict[str, SourceLocation] = {}
    attributes, imports, has_modulo = set(), set(), False
    for module in modules:
        for node in list_nodes(module.body):
            for name in _names_of(node):
                names.setdefault(name, SourceLocation(module.shown_path, node.lineno, node.col_offset + 1))  # type: ignore[attr-defined]
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                attributes.add(f"{node.value.id}.{node.attr}")
            has_modulo |= isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv))
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
                imports |= {imported.partition(".")[0] for imported in imported_modules("", node)}
    return Calls(names, frozenset(attributes), frozenset(imports), has_modulo)


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value


def find_problems(modules: Sequence[SourceModule]) -> Iterator[Problem]:
    """Yield what the program's calls of these libraries omit, or cannot do."""
    calls = collect_calls(modules)
    for check in CHECKS:
        yield from check(calls)


def _lengths_not_padded(calls: Calls) -> Iterator[Problem]:
    place = calls.find(*EVEN_SPLIT, *ZIGZAG) if calls.imports & {RING, USP} else None
    pads = any("pad" in name.lower() and name not in NO_PADDING for name in calls.names)
    if place is None or pads or calls.has_modulo:
        return
    multiple = "2 * ring_size" if calls.find(*ZIGZAG) else "ring_size"
    yield _problem(
        "rows are split across the ranks of a ring, but are not padded to a divisible length",
        ("ring_flash_attn 0.1.8 llama3_flash_attn_varlen.py:25: assert total_length % world_size == 0",),
        place,
        Fix(f"pad each row to a multiple of {multiple}", "edit", PAD_CODE.replace("MULTIPLE", f"({multiple})")),
    )


def _parameters_not_set(calls: Calls) -> Iterator[Problem]:
    place = calls.find("substitute_hf_flash_attn")
    if place is None or calls.find("update_ring_flash_attn_params"):
        return
    yield _problem(
        "update_ring_flash_attn_params is never called, so the first forward raises KeyError: 'cu_seqlens_q'",
        ("ring_flash_attn 0.1.8 adapters/hf_adapter.py: only that call fills DATA_PARAMS",),
        place,
        Fix(
            "call it before every forward, and run each micro-batch's backward before the next forward "
            "(not tried here)",
            "edit",
            "update_ring_flash_attn_params(cu_seqlens, group)  # int32 offsets of the whole row's documents",
        ),
    )


def _half_precision_query(calls: Calls) -> Iterator[Problem]:
    place = calls.find(*BASIC_RING) if RING in calls.imports else None
    if place is None or not (calls.find("float16", "fp16", "half") and not calls.find("bfloat16", "bf16")):
        return
    yield _problem(
        "ring_flash_attn_func in float16: its backward returns the queries' gradient in bfloat16",
        ("ring_flash_attn 0.1.8 ring_flash_attn.py:154: return dq.to(torch.bfloat16), …",),
        place,
        Fix("train in bfloat16", "edit", "torch.bfloat16  # instead of torch.float16"),
        Fix("or use the scheme that keeps the dtype (not tried here)", "edit", "llama3_flash_attn_varlen_func"),
    )


def _forward_only_type(calls: Calls) -> Iterator[Problem]:
    torch_types = sorted(name for name in calls.attributes if name.startswith("AttnType.TORCH"))
    place = calls.find(*USP_LAYERS)
    if not (torch_types and place and USP in calls.imports and calls.find(*TRAINS)):
        return
    yield _problem(
        f"{torch_types[0]} has only a forward, so training raises "
        "RuntimeError: Not implemented backward for PyTorch attention types",
        ("yunchang 0.6.4 kernels/attention.py:159; run on two gloo ranks: the forward passes, the backward raises",),
        place,
        Fix("use the type that can train; it needs flash-attn (not tried here)", "edit", "attn_type=AttnType.FA"),
    )


def _groups_not_set(calls: Calls) -> Iterator[Problem]:
    place = calls.find(*USP_LAYERS) if USP in calls.imports else None
    if place is None or calls.find(*USP_GROUPS):
        return
    yield _problem(
        "set_seq_parallel_pg is never called, so Ulysses and the ring both use all ranks as their group",
        ("yunchang 0.6.4 hybrid/attn_layer.py:37: PROCESS_GROUP.RING_PG, ULYSSES_PG; None until that call",),
        place,
        Fix(
            "set the groups before the layer is built; the product of the two degrees is the number of "
            "ranks that share a row",
            "edit",
            "set_seq_parallel_pg(ulysses_degree, ring_degree, dist.get_rank(), dist.get_world_size())",
        ),
    )


def _positions_not_given(calls: Calls) -> Iterator[Problem]:
    place = calls.find(ULYSSES)
    if place is None or calls.find("position_ids", "UlyssesSPDataLoaderAdapter"):
        return
    yield _problem(
        "DeepSpeed's Ulysses needs position_ids in every forward, and this script does not create them",
        ("deepspeed 0.17 runtime/sequence_parallel/ulysses_sp.py: Ulysses SP requires position_ids",),
        place,
        Fix("pass them, before the rows are split", "edit", PAD_CODE.replace("MULTIPLE", "sp_size")),
    )


def _problem(message: str, evidence: tuple[str, ...], place: SourceLocation, *fixes: Fix) -> Problem:
    return Problem(message, evidence, fixes, subject=place.source, predicted=False, locations=(place,))


CHECKS: tuple[Callable[[Calls], Iterator[Problem]], ...] = (
    _lengths_not_padded,
    _parameters_not_set,
    _half_precision_query,
    _forward_only_type,
    _groups_not_set,
    _positions_not_given,
)
