"""`flash`: called as flash_attn_func is."""

from collections.abc import Mapping

from torch import Tensor

from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.adapters.functions.keywords import flash_keywords
from nsa_doctor.subject.function import Arguments, Convention, Problem


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """q, k, v [B, S, H, D] and flash-attn's keywords."""
    return Arguments(positional=(tensors["q"], tensors["k"], tensors["v"]), keywords=flash_keywords(problem, tensors))


CONVENTION = Convention(
    name="flash",
    summary="f(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None), [B, S, H, D]",
    layout="bshd",
    arguments=arguments,
    read=output,
    has_slopes_of_rows=True,
    lse_gradient="may",  # flash-attn leaves it out
    refuses={"mask": "flash-attn takes no mask tensor", "top_left": "flash-attn aligns masks at the bottom right"},
)
