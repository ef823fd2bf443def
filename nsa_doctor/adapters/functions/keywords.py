"""The arguments that conventions share, each by the names it goes by."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from nsa_doctor.subject.function import Keyword, Problem

CAUSAL = ("causal", "is_causal")
SCALE = ("softmax_scale", "scale", "sm_scale", "scaling")
WINDOW = ("window_size", "window", "sliding_window")
SOFTCAP = ("softcap", "logits_soft_cap", "soft_cap")
SINKS = ("sinks", "s_aux", "learnable_sink", "sink")


def first(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, that of the convention first."""
    return name, *(each for each in names if each != name)


def causal(problem: Problem, name: str) -> Keyword:
    """Whether it is causal; without, in place of another default alone."""
    is_causal = problem.spec.is_causal
    return Keyword(names=first(name, CAUSAL), value=is_causal, word="causal", need="must" if is_causal else "default")


def scale(problem: Problem, name: str) -> Iterator[Keyword]:
    """The factor of the scores, where it is not the usual one."""
    if problem.spec.scale is not None:
        yield Keyword(names=first(name, SCALE), value=problem.scale, word=problem.spec.word_of("scale"))


def softcap(problem: Problem) -> Iterator[Keyword]:
    """The limit of the scores."""
    if problem.spec.softcap:
        yield Keyword(names=SOFTCAP, value=problem.spec.softcap, word=problem.spec.word_of("softcap"))


def sinks(problem: Problem, tensors: Mapping[str, Tensor], name: str = "sinks") -> Iterator[Keyword]:
    """One score per head that takes weight and gives no value."""
    if "sinks" in tensors:
        yield Keyword(names=first(name, SINKS), value=tensors["sinks"], word="sinks")


def window(problem: Problem) -> Iterator[Keyword]:
    """Keys before and after, as flash-attn counts them."""
    if problem.spec.window is not None:
        yield Keyword(names=WINDOW, value=problem.spec.window, word=problem.spec.word_of("window"))


def alibi(problem: Problem, tensors: Mapping[str, Tensor]) -> Iterator[Keyword]:
    """Slopes of the bias by distance."""
    if problem.slopes is not None:
        yield Keyword(names=("alibi_slopes",), value=problem.slopes.to(tensors["q"].device), word="alibi")


def flash_keywords(problem: Problem, tensors: Mapping[str, Tensor]) -> tuple[Keyword, ...]:
    """What flash_attn_func and its relatives take by name."""
    return (
        causal(problem, "causal"),
        *scale(problem, "softmax_scale"),
        *window(problem),
        *softcap(problem),
        *alibi(problem, tensors),
        *sinks(problem, tensors, "learnable_sink"),
    )
