"""The generated part of a suite: a covering array over the dimensions of a case, with one case per row.

The first value of a dimension is the plain one. Other seeds give other rows with the same coverage, and other lengths,
windows and documents within a row.
"""

import functools
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attncheck.core.cases import BROADCAST_STRIDES, STRIDE_LETTERS, UNBOUNDED, Case, Probe
from attncheck.measure.covering import Coverage, Row, make_rows

# Entries of a case's score matrices, about; CPUs multiply float16 several times slower than other dtypes.
MAX_CELLS = {"bfloat16": 140_000, "float16": 90_000, "float32": 140_000}  # twice as many if packed
MAX_DROPOUT_CELLS = 150_000  # the probe calls a backend several times
MAX_CELLS_OF_MANY_TILES = {"bfloat16": 700_000, "float16": 450_000, "float32": 700_000}
MAX_ELEMENTS = 300_000  # of q, about: most of a short case's time is that of its tensors
FEWEST_OF_MANY_TILES = 5  # of 64 tokens: three of 128
OTHER_HEAD_DIMS = (16, 24, 40, 48, 56, 88, 104, 112, 120, 144, 160, 224, 240)
V_HEAD_DIMS = (16, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256)
REACHES = (16, 32, 64, 128, 256)
DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "layout": ("dense", "packed", "left_padded", "right_padded"),
    "keys": ("same", "longer", "shorter", "decode"),  # number of keys relative to the queries
    "causal": (True, False),
    "window": ("", "left", "both", "right"),
    "softcap": (0.0, 20.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "attention_chunk": (False, True),
    "backward": (True, False),
    "dropout": (False, True),
    "kv_heads": ("several", "one", "equal"),  # number of kv heads: GQA, MQA, or one for each head
    # apart: with the keys of the next document, so that some have fewer keys than queries and others more
    "documents": ("equal", "unequal", "some_empty", "apart"),
    "dtype": ("bfloat16", "float16", "float32"),
    "v_head_dim": ("equal", "narrower", "wider"),
    "alignment": ("bottom_right", "top_left"),
    "tiles": ("few", "many"),  # of queries and keys
    "length": ("odd", "above", "tile", "below", "short", "one"),
    "reach": ("tile", "below", "above", "small", "third", "edge"),  # size of windows and chunks
    "batch": (1, 3, 33, 2, 9, 17, 65),  # number of rows, or of documents
    "heads": (4, 9, 20, 10, 14, 65, 96),
    "head_dim": (64, 192, 80, 128, 32, 96, 256, 72, 0),  # 0: another size
    "values": ("normal", "large", "ramp", "outlier", "long_tail", "rising", "cancelling", "small", "negative"),
    "dout_exponent": (0, -20, -10, 12),
    "mask": ("", "bool", "additive"),
    "per_head": (False, True),
    "scale": (0.0, 0.04),  # with normal values 1.0, but not with dropout, whose probe is coarser with such scores
    "q_strides": ("c", "t", "s", "r"),
    "k_strides": ("c", "t", "s", "r"),
    "v_strides": ("c", "t", "s", "r"),
    "dout_strides": ("c", "t", "s", "r", "e"),
    "strides": ("", "sliced", "expanded", "scalar_dout"),
}
INTERACTING = tuple(DIMENSIONS)[:16]
# Of several, by the number of heads.
KV_HEADS = {4: (2,), 9: (3,), 10: (2, 5), 14: (2, 7), 20: (2, 5), 65: (13, 5), 96: (12, 24, 6)}
ALWAYS_VARIED = (
    "  in every case without a probe: the default and the deterministic mode, a second call on negated inputs,",
    "    and free memory that holds NaN in one call and large numbers in the next",
)
# Dimensions that decide which keys are visible, and the probe that shows it.
PROBE_DIMENSIONS = {
    "probe": ("code", "retrieve", "heads", "poison"),
    **{name: DIMENSIONS[name] for name in ("layout", "keys", "causal", "window", "attention_chunk", "documents")},
    **{name: DIMENSIONS[name] for name in ("alignment", "tiles", "length", "reach")},
    "batch": (3, 1, 9),
}
# Kernels have faster paths for calls without options, one for each kind of lengths and head_dim.
PLAIN_DIMENSIONS = {
    **{name: DIMENSIONS[name] for name in ("layout", "keys", "documents", "kv_heads")},
    "length": ("tile", "odd", "above", "short"),
    "head_dim": (64, 256, 128, 0),
    "batch": (2, 1),
    "tiles": DIMENSIONS["tiles"],
}
Array = Literal["quick", "standard", "probes", "plain", "plain_full"]
PLAIN_ARRAYS: tuple[Array, ...] = ("plain", "plain_full")
PLAIN = {name: values[0] for name, values in DIMENSIONS.items()}
QUICK_LEVELS = 3  # the most values of each dimension in the quick suite
# Features that some backends refuse. A row with more of them would run on no backend.
REFUSED_BY_SOME = ("softcap", "sinks", "alibi", "attention_chunk", "mask", "per_head", "scale")
SELDOM_COMBINED = ("layout", "keys", "window", "dtype", "v_head_dim", "alignment", "backward", "strides")
LARGE = ("outlier", "large", "long_tail", "normal")


def is_allowed(row: Mapping[str, Any]) -> bool:
    """Return whether a row makes sense so far; missing values count as plain."""
    get = row.get
    layout, keys, values, length = get("layout"), get("keys", "same"), get("values", "normal"), get("length", "odd")
    batch, heads, dtype = get("batch", 1), get("heads", 4), get("dtype", "bfloat16")
    documents, many = get("documents", "equal"), get("tiles") == "many"
    crossed, dout_exponent = keys != "same" or documents == "apart", get("dout_exponent", 0)
    strides = get("strides", "")
    unusual = sum(bool(get(name)) for name in REFUSED_BY_SOME)
    unusual += (dtype == "float32") + (get("v_head_dim", "equal") != "equal")
    scores_change = get("softcap") or get("sinks") or get("alibi") or get("scale")
    return not (
        unusual > 2 + bool(get("dropout"))
        or (documents in ("unequal", "apart") and layout == "dense")
        or (documents == "some_empty" and layout not in ("packed", None))
        or (batch == 1 and "batch" in row and (documents != "equal" or layout not in ("dense", "packed", None)))
        or (many and (length in ("one", "short") or batch > 3 or batch * heads > (8 if dtype == "float16" else 12)))
        or (get("reach", "tile") != "tile" and not (row.get("window", "?") or row.get("attention_chunk", "?")))
        or batch * heads * (get("head_dim", 64) or 160) > 70_000  # a row has nine tokens at least
        or (heads > 60 and (batch > 3 or get("head_dim", 64) > 128))
        or (length == "one" and crossed)
        # flash-attn 2.8.3 takes documents of one query as decoding, one token each (`seqlenq_ngroups_swapped`).
        or (length == "one" and documents == "some_empty")
        or (documents == "apart" and keys == "decode")
        or (get("alignment") == "top_left" and "keys" in row and "documents" in row and not crossed)
        or (get("window") == "right" and get("causal") is True)
        or (scores_change and values not in LARGE)
        or (dout_exponent and (dtype == "float16" or values == "small" or strides == "scalar_dout"))
        or (dout_exponent and get("backward") is False)
        or (get("alibi") and (get("mask") or (crossed and layout not in ("dense", None))))
        or (get("per_head") and "mask" in row and not row["mask"])
        or (get("attention_chunk") and get("alignment") == "top_left")
        or (get("v_head_dim") == "wider" and get("head_dim", 64) > 192)
        or (strides and any(get(f"{name}_strides", "c") != "c" for name in ("q", "k", "v", "dout")))
        or (strides == "sliced" and (crossed or get("v_head_dim", "equal") != "equal"))
        or (strides == "expanded" and get("kv_heads") == "one")
        or (strides in ("expanded", "scalar_dout") and (layout not in ("dense", None) or crossed))
        or (strides == "scalar_dout" and get("backward") is False)
        or (strides == "scalar_dout" and values not in LARGE)  # dq cancels
        # Only sums of many parts cancel. Losses in float32 show anyway. Every head_dim has a case in bfloat16.
        or (
            values == "cancelling"
            and (get("causal") or get("window") or keys == "decode" or documents == "some_empty" or dtype != "bfloat16")
        )
        or (values == "cancelling" and (length in ("one", "short") or batch > 2 or heads > 10))
        # Few keys for many queries: nearly equal weights round the same way.
        or (values in ("small", "negative") and (length == "one" or documents == "apart"))
        # All rows round the same way, so many of them reveal errors that the noise model omits.
        or (
            values in ("cancelling", "negative", "small")
            and (batch > 3 or heads > 20 or get("attention_chunk") or get("mask"))
        )
        # The dropout probe has its own inputs, and judges masks by their statistics, which need some keys per query.
        or (get("dropout") and (length in ("one", "short") or values != "normal" or strides in BROADCAST_STRIDES))
        or (get("dropout") and (keys == "decode" or batch > 33 or (batch > 3 and heads > 20)))
        or (get("dropout") and (get("reach") == "small" or (many and batch * heads > 8)))
        or (get("dropout") and many and get("v_head_dim") == "narrower")  # one call reads v_head_dim keys
        or (get("probe") == "poison" and layout == "dense")
        or (get("probe") == "poison" and documents == "equal" and layout not in ("packed", None))
        or (get("probe") == "poison" and batch == 1 and "batch" in row)
    )


@functools.cache
def make_coverage(array: Array, seed: int) -> tuple[Coverage, tuple[Row, ...]]:
    """Return an array's coverage and its rows: all pairs of values, and in `standard` also triples.

    `standard` leaves out what the plain calls have.
    """
    quick = {name: values[:QUICK_LEVELS] for name, values in DIMENSIONS.items()}
    dimensions: dict[str, tuple[Any, ...]] = {
        "quick": quick,
        "standard": DIMENSIONS,
        "probes": PROBE_DIMENSIONS,
        "plain": PLAIN_DIMENSIONS | {"causal": (True,)},
        "plain_full": PLAIN_DIMENSIONS | {"causal": (False,)},
    }[array]
    interacting = INTERACTING if array == "standard" else ()
    usually_plain = (*REFUSED_BY_SOME, *SELDOM_COMBINED, *(("tiles",) if array in PLAIN_ARRAYS else ()))
    coverage = Coverage(dimensions, interacting, is_allowed, usually_plain, "dropout")
    for earlier in PLAIN_ARRAYS if array == "standard" else ():
        for row in make_coverage(earlier, seed)[1]:
            coverage.remove([coverage.values.index(item) for item in (PLAIN | row).items()])
    return coverage, tuple(make_rows(coverage, f"{array} {seed}"))


def describe_coverage(array: Array, seed: int) -> Iterator[str]:
    """Yield lines on the pairs and triples of values that an array covers."""
    coverage, rows = make_coverage(array, seed)
    left = coverage.count_left()
    yield f"{array}: {len(rows)} generated cases over {len(coverage.dimensions)} dimensions, seed {seed}"
    for name, values in coverage.dimensions.items():
        yield f"  {name}: " + ", ".join(str(value) or "none" for value in values)
    for size, title in ((2, "pairs of values"), (3, f"triples of {', '.join(coverage.interacting)}")):
        if coverage.total[size]:
            covered = coverage.total[size] - left[size]
            yield f"  {title}: {covered} of {coverage.total[size]}; {coverage.excluded[size]} exclude each other"
    yield from ALWAYS_VARIED


def arrays_of(suite: str) -> tuple[Array, ...]:
    """Return the arrays whose cases a suite has."""
    return ("quick",) if suite == "quick" else (*PLAIN_ARRAYS, "probes", "standard")


def iter_generated_cases(array: Array, seed: int) -> Iterator[Case]:
    """Yield one case for each row of an array."""
    rng = random.Random(f"{array} {seed}")
    for row in make_coverage(array, seed)[1]:
        yield _make_case(PLAIN | row, rng)


def _make_case(row: Row, rng: random.Random) -> Case:
    heads, head_dim = row["heads"], row["head_dim"] or rng.choice(OTHER_HEAD_DIMS)
    kv_heads = {"several": rng.choice(KV_HEADS[heads]), "one": 1, "equal": heads}[row["kv_heads"]]
    narrower, wider = ([size for size in V_HEAD_DIMS if (size > head_dim) is side] for side in (False, True))
    v_head_dim = {"equal": head_dim, "narrower": rng.choice(narrower), "wider": rng.choice(wider or [256])}[
        row["v_head_dim"]
    ]
    seqlens_q, seqlens_k = _choose_lengths(row, heads, head_dim, rng)
    longest, shorter = max(seqlens_q + seqlens_k), min(max(seqlens_q), max(seqlens_k))
    letters = "".join(row[f"{name}_strides"] for name in ("q", "k", "v", "dout"))
    names = {letters: name for name, letters in STRIDE_LETTERS.items()}
    probe: Probe = "dropout" if row["dropout"] else row.get("probe", "")
    copied = ("layout", "causal", "softcap", "sinks", "alibi", "alignment", "values", "mask", "dtype")
    return Case(
        _name_family(row),
        seqlens_q,
        seqlens_k,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        window_size=_choose_window(row, longest, shorter, rng),
        attention_chunk=max(2, _choose_reach(row["reach"], longest, shorter, rng)) if row["attention_chunk"] else 0,
        per_head=row["per_head"],
        scale=1.0 if row["scale"] and row["values"] == "normal" and not row["dropout"] else row["scale"],
        strides=row["strides"] or names.get(letters, letters),
        dout_exponent=row["dout_exponent"],
        dropout=rng.choice((0.1, 0.2, 0.5)) if row["dropout"] else 0.0,
        probe=probe,
        backward=probe in ("heads", "poison") if row.get("probe") else row["backward"],
        **{name: row[name] for name in copied},
    )


def _choose_lengths(row: Row, heads: int, head_dim: int, rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return seqlens_q and seqlens_k of the row's class, as large as its heads and batch allow."""
    count, packed, many = row["batch"], row["layout"] == "packed", row["tiles"] == "many"
    cells = MAX_DROPOUT_CELLS if row["dropout"] else (MAX_CELLS_OF_MANY_TILES if many else MAX_CELLS)[row["dtype"]]
    area, rows = cells / heads * (2 if packed else 1 / count), count if packed else 1
    tokens = MAX_ELEMENTS // (count * heads * head_dim)
    least = FEWEST_OF_MANY_TILES if many else 1
    limit = max(64 * least + 1 if many else 9, min(int(area**0.5) // rows, tokens, 400))
    first = _choose_length(row["length"], limit, least, rng, longest=row["values"] == "cancelling")
    lengths = [first] * count
    if row["documents"] != "equal":
        others = (1, 2, 7, 15, 16, 17, 63, 64, 65, 128, rng.randint(1, first), rng.randint(1, first))
        fitting = [length for length in others if length <= first]
        lengths[1:] = [rng.choice(fitting) for _ in lengths[1:]]
        if row["documents"] == "some_empty":
            for index in rng.sample(range(1, count), (count + 1) // 3):
                lengths[index] = 0
        rng.shuffle(lengths)
    # With no document of two queries, flash-attn 2.8.3 takes each as decoding (`seqlenq_ngroups_swapped`).
    few = rng.choice((3, 8) if row["documents"] == "some_empty" else (1, 1, 3, 8))
    fewer = [min(few, length) for length in lengths] if row["keys"] == "decode" else lengths
    most = max(limit, min(tokens, int(area / max(fewer)) // (2 * rows**2)))  # many keys for few queries cost little
    more = [min(rng.choice((1, 16, 37, 64, 129, 200, 500)), most) for _ in lengths]  # each document has its own
    longer = [
        length and length + (more[0] if row["documents"] == "equal" else extra) for length, extra in zip(lengths, more)
    ]
    q, k = {"same": (lengths, lengths), "shorter": (longer, lengths)}.get(row["keys"], (fewer, longer))
    if row["documents"] == "apart":
        k = [*k[1:], k[0]]
    elif row["documents"] == "some_empty" and row["keys"] != "same":  # empty on one side only
        size = rng.choice((1, 7, 64, 65))
        pairs = [pair if any(pair) else rng.choice(((0, size), (size, 0))) for pair in zip(q, k)]
        q, k = map(list, zip(*pairs))
    return tuple(q), tuple(k)


def _choose_length(kind: str, limit: int, least: int, rng: random.Random, longest: bool) -> int:
    """Return a length of a class: by its remainder to a tile of 64, or to a smaller one below `limit`.

    It has at least `least` tiles; whole tiles, or with `longest`: as many as `limit` allows.
    """
    if kind in ("one", "short"):
        return {"one": 1, "short": rng.randint(2, min(15, limit))}[kind]
    tile = next(size for size in (64, 32, 16, 8) if size < limit)
    count = (limit - 1) // tile
    edge = tile * (count if longest or kind == "tile" else rng.randint(least, count))  # 128 too, if that is whole
    return edge + {"below": -1, "tile": 0, "above": 1, "odd": -rng.randrange(3, tile // 2 + 1, 2)}[kind]


def _choose_window(row: Row, longest: int, shorter: int, rng: random.Random) -> tuple[int, int]:
    """Return a window, one of whose sides is of the row's class."""
    kinds = [row["reach"], rng.choice(DIMENSIONS["reach"][:3])]
    if row["window"] == "both":
        rng.shuffle(kinds)
    left, right = (
        _choose_reach(kind, longest, shorter, rng) for kind in kinds[:: -1 if row["window"] == "right" else 1]
    )
    if row["window"] == "left":
        return left, 0 if row["causal"] else UNBOUNDED
    return {"": (UNBOUNDED, UNBOUNDED), "both": (left, right), "right": (UNBOUNDED, right)}[row["window"]]


def _choose_reach(kind: str, longest: int, shorter: int, rng: random.Random) -> int:
    """Return the size of a window or chunk: near that of a tile, or as long as the shorter of q and k.

    The latter hides keys only at one edge.
    """
    tile = rng.choice([size for size in REACHES if size < longest] or REACHES[:1])
    sizes = {"tile": tile, "below": tile - 1, "above": tile + 1, "small": rng.choice((0, 1, 2))}
    return {**sizes, "third": longest // 3, "edge": shorter - 1}[kind]


def _name_family(row: Row) -> str:
    """Return the most unusual feature of a row."""
    features = {
        "dropout": row["dropout"],
        "chunk": row["attention_chunk"],
        "mask": row["mask"],
        "sinks": row["sinks"],
        "alibi": row["alibi"],
        "softcap": row["softcap"],
        "scale": row["scale"],
        "window": row["window"],
        "cross": row["keys"] != "same",
        "packed": row["layout"] == "packed",
        "padded": row["layout"] != "dense",
        "strides": row["strides"],
        "head_dim": row["v_head_dim"] != "equal",
        "dtype": row["dtype"] != "bfloat16",
        "values": row["values"] != "normal",
        "heads": row["heads"] != 4 or row["kv_heads"] != "several",
    }
    return next((name for name, has in features.items() if has), "length")
