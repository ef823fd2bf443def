"""How Hypothesis makes cases: small ones first, edges often, impossible ones where refusal is the property."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from nsa_doctor.core.measurement import VALUES
from nsa_doctor.fuzz import plain_rules as rules
from nsa_doctor.fuzz.cases import LAYOUTS, MAGNITUDES, TARGETS, Target

Drawn = st.SearchStrategy[dict[str, Any]]
Draw = Callable[[st.SearchStrategy[Any]], Any]
_SCORES = (0.0, 1.0, 0.5, 2.0, 0.25, 1e-45, 1e-310, 1e30, -0.0, "inf", "nan", -1.0, "-inf")
_HUGE = (-2, -(2**31), 2**31 - 1, 2**40)
_TILE_BUDGETS = (None, None, 2000, 100)  # elements; the least makes a tile of almost every query
_PLAIN = ("vectorized", "fused", "reference")
_SEEDS = st.integers(0, 255)


def of(target: Target, offers: Mapping[str, Any], is_builtin: bool) -> Drawn:
    """Cases for a target, for a subject that offers this."""
    assert target in TARGETS
    match target:
        case "ranges":
            return st.one_of(_slots(), _ranges(), _masks(), _grids())
        case "masks":
            return _reads(offers)
        case "select":
            return _choices(_impls(("vectorized", "reference"), offers), offers)
        case "attend":
            return _attentions(_impls(_PLAIN, offers), offers)
        case "forward":
            return _passes(offers, is_builtin)


@st.composite
def sizes(draw: Draw, most_strides: int = 3, longest_window: int = 10) -> dict[str, int]:
    """A geometry the equations define, of a few tokens."""
    stride = draw(st.integers(1, 3))
    short = draw(st.integers(1, most_strides))
    long = draw(st.integers(short, most_strides + 1))
    slots, window = draw(st.integers(3, 5)), draw(st.integers(1, longest_window))
    return {"l": short * stride, "d": stride, "l_sel": long * stride, "n_sel": slots, "w": window}


@st.composite
def _slots(draw: Draw) -> dict[str, Any]:
    l_sel, num_tokens = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    num_blocks = len(rules.selection_blocks(num_tokens, l_sel))
    slot = st.integers(-1, num_blocks - 1)
    if draw(_rarely()):
        slot = st.one_of(slot, st.sampled_from((num_blocks, *_HUGE)))
    rows = draw(_table(slot, draw(st.integers(1, 3)), draw(st.integers(0, 6))))
    return {"kind": "slots", "l_sel": l_sel, "num_tokens": num_tokens, "rows": rows, **draw(_memory())}


@st.composite
def _ranges(draw: Draw) -> dict[str, Any]:
    l_sel, num_tokens = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    is_whole, is_wild = draw(st.booleans()), draw(_rarely())
    steps = l_sel if is_whole else 1
    edge = st.integers(0, -(-num_tokens // steps)).map(lambda step: min(step * steps, num_tokens))
    pair = st.tuples(edge, edge).map(sorted)
    if is_wild:
        any_edge = st.one_of(edge, st.sampled_from((num_tokens + 1, -1, *_HUGE)))
        pair = st.one_of(pair, st.tuples(any_edge, any_edge).map(list))
    rows = draw(_table(pair, draw(st.integers(1, 3)), draw(st.integers(0, 5))))
    num_slots = draw(st.integers(0, 8))
    case = {"kind": "ranges", "l_sel": l_sel, "num_tokens": num_tokens, "num_slots": num_slots, "rows": rows}
    return {**case, **draw(_memory())}


@st.composite
def _masks(draw: Draw) -> dict[str, Any]:
    l_sel, num_tokens = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    if draw(st.booleans()):
        num_blocks = len(rules.selection_blocks(num_tokens, l_sel))
        chosen = draw(_table(st.booleans(), draw(st.integers(1, 3)), num_blocks))
        rows = [[block for block in row for _ in range(l_sel)][:num_tokens] for row in chosen]
    else:
        rows = draw(_table(st.booleans(), draw(st.integers(1, 3)), num_tokens))
    most = {"num_slots": draw(st.integers(0, 8)), "num_ranges": draw(st.integers(0, 8))}
    return {"kind": "mask", "l_sel": l_sel, **most, "rows": rows, "layout": draw(st.sampled_from(LAYOUTS))}


@st.composite
def _grids(draw: Draw) -> dict[str, Any]:
    given = list(draw(sizes()).values())
    if draw(_rarely()):
        given = draw(st.lists(st.integers(-1, 8), min_size=5, max_size=5))
    query = draw(st.integers(0, 40))
    slots = draw(st.lists(st.integers(-1, 12), max_size=5))
    return {"kind": "grid", "sizes": given, "num_tokens": draw(st.integers(1, 40)), "query": query, "slots": slots}


@st.composite
def _reads(draw: Draw, offers: Mapping[str, Any]) -> dict[str, Any]:
    lengths = draw(st.one_of(st.lists(st.integers(1, 40), min_size=1, max_size=1), _packed()))
    return {
        "kind": "reads",
        "sizes": draw(sizes()),
        "lengths": lengths,
        "num_queries": draw(st.one_of(st.just(512), st.integers(1, 12))),
        "rows": draw(st.integers(1, 2)),
        "groups": draw(st.integers(1, 2)),
        "heads": draw(st.integers(1, 2)),
        "probed": draw(st.integers(0, 40)),
        "impl": draw(st.sampled_from(_impls(_PLAIN, offers))),
        "dtype": _widest(offers),
        "tile_budget": draw(st.sampled_from(_TILE_BUDGETS)),
        "seed": draw(_SEEDS),
    }


def _packed() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 15), min_size=2, max_size=4).filter(any)


@st.composite
def _choices(draw: Draw, impls: Sequence[str], offers: Mapping[str, Any]) -> dict[str, Any]:
    is_ours = impls != ("subject",)
    l_sel = draw(st.integers(1, 4)) if is_ours else offers["sizes"]["l_sel"]
    n_sel = draw(st.integers(3, 6)) if is_ours else offers["sizes"]["n_sel"]
    num_queries = draw(st.integers(1, 3))
    first_query = draw(st.integers(0, 12 if is_ours else min(4000, l_sel * (n_sel + 6))))
    needed = len(rules.candidates(first_query + num_queries - 1, l_sel))
    num_blocks = needed + (draw(st.integers(0, 3)) if is_ours else 0)
    # A foreign choice is owed what probabilities are: finite, and not below zero.
    pool = _SCORES[: draw(st.sampled_from((5, 9, 10, len(_SCORES))))] if is_ours else _SCORES[:5]
    score = st.sampled_from(pool)
    groups, rows = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    importance = [[draw(_table(score, groups, num_blocks)) for _ in range(num_queries)] for _ in range(rows)]
    return {
        "kind": "choice",
        "l_sel": l_sel,
        "n_sel": n_sel,
        "first_query": first_query,
        "importance": importance,
        "dtype": draw(_dtypes(is_ours, offers)),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "impl": draw(st.sampled_from(impls)),
    }


@st.composite
def _attentions(draw: Draw, impls: Sequence[str], offers: Mapping[str, Any]) -> dict[str, Any]:
    impl = draw(st.sampled_from(impls))
    num_tokens = draw(st.integers(1, 36))
    is_ours = impl != "subject"
    return {
        "kind": "attention",
        "sizes": draw(sizes()) if is_ours else _blocks_alone(offers["sizes"]),
        "num_tokens": num_tokens,
        "num_queries": draw(st.one_of(st.just(num_tokens), st.integers(1, num_tokens))),
        "rows": draw(st.integers(1, 2)),
        "groups": draw(st.integers(1, 2)),
        "heads": draw(st.integers(1, 3)),
        "d_k": draw(st.sampled_from((4, 8, 2))),
        "d_v": draw(st.sampled_from((4, 8, 3))),
        "dtype": draw(_dtypes(is_ours, offers)),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "magnitudes": draw(st.lists(st.sampled_from(MAGNITUDES), min_size=3, max_size=3)),
        "is_window_trimmed": draw(st.booleans()) if is_ours else False,
        "tile_budget": draw(st.sampled_from(_TILE_BUDGETS)) if is_ours else None,
        "impl": impl,
        "seed": draw(_SEEDS),
    }


@st.composite
def _passes(draw: Draw, offers: Mapping[str, Any], is_builtin: bool) -> dict[str, Any]:
    short = st.integers(1, min(24, max(offers["lengths"])))
    lengths = st.integers(1, 40) if is_builtin else st.one_of(short, st.sampled_from(offers["lengths"]))
    length = draw(lengths)
    return {
        "kind": "pass",
        "layer": draw(_layers()) if is_builtin else None,
        "length": length,
        "cut": draw(st.integers(0, length - 1)),
        "rows": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from(("own",) if offers["dtype"] else ("wide", "own"))),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "values": draw(st.one_of(st.just("normal"), st.sampled_from(VALUES))),
        "magnitude": draw(st.one_of(st.just(1.0), st.sampled_from(MAGNITUDES))) if offers["is_float"] else 1.0,
        "has_backward": draw(st.booleans()),
        "seed": draw(_SEEDS),
    }


@st.composite
def _layers(draw: Draw) -> dict[str, Any]:
    return {
        "sizes": draw(sizes()),
        "groups": draw(st.integers(1, 2)),
        "heads": draw(st.integers(1, 2)),
        "d_k": draw(st.sampled_from((4, 2))),
        "d_v": draw(st.sampled_from((4, 3))),
        "phi": draw(st.sampled_from(("avg", "mlp", "conv"))),
        "gate": draw(st.sampled_from(("softmax", "sigmoid"))),
        "shared_kv": draw(st.booleans()),
    }


def _blocks_alone(given: Mapping[str, int]) -> dict[str, int]:
    """The geometry of the selected branch, the only one that a foreign `attend` has."""
    return {"l": 1, "d": 1, "l_sel": given["l_sel"], "n_sel": max(3, given["n_sel"]), "w": 1}


def _dtypes(is_ours: bool, offers: Mapping[str, Any]) -> st.SearchStrategy[str]:
    usual: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16") if is_ours else ("float32",)
    if is_ours and (impl := offers.get("impl")) is not None:
        usual = tuple(dtype for dtype in usual if dtype in offers["impls"][impl][0])
    return st.sampled_from((offers["dtype"],) if offers["dtype"] else usual)


def _impls(usual: tuple[str, ...], offers: Mapping[str, Any]) -> tuple[str, ...]:
    """The implementation asked for by name, or those tried when none is; the subject's own where it is not `nsa`."""
    if not offers["is_nsa"]:
        return ("subject",)
    return usual if offers.get("impl") is None else (offers["impl"],)


def _widest(offers: Mapping[str, Any]) -> str:
    """The dtype in which a weight of zero is distinguished from a small one best."""
    served = offers["impls"][offers["impl"]][0] if offers.get("impl") is not None else ()
    return next((dtype for dtype in ("float64", "float32", "bfloat16", "float16") if dtype in served), "float64")


def _rarely() -> st.SearchStrategy[bool]:
    return st.integers(0, 3).map(lambda number: number == 3)


def _table(item: st.SearchStrategy[Any], rows: int, columns: int) -> st.SearchStrategy[list[list[Any]]]:
    row = st.lists(item, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


@st.composite
def _memory(draw: Draw) -> dict[str, str]:
    return {"dtype": draw(st.sampled_from(("int64", "int32"))), "layout": draw(st.sampled_from(LAYOUTS))}
