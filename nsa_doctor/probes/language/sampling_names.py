"""What names say about a function that is used to sample: what it does, what it is given, and what its numbers are."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nsa_doctor.core.errors import Caught, attempt

Kind = Literal["top_p", "top_k", "share", "min_p", "temperature", "penalty"]
Given = Literal["logits", "probs", "log_probs", "either"]
OFF: dict[Kind, tuple[Any, ...]] = {  # defaults at which a number does nothing
    "top_p": (None, 0, 1),
    "top_k": (None, 0, -1),
    "share": (None,),
    "min_p": (None, 0),
    "temperature": (None, 1),
    "penalty": (None, 1),
}
NUM_TOKENS = 50  # of the made-up logits
IDLE: dict[Kind, float] = {"top_p": 1.0, "top_k": NUM_TOKENS, "min_p": 0.0, "temperature": 1.0, "penalty": 1.0}

_BY_FUNCTION: dict[Kind, re.Pattern[str]] = {
    "top_p": re.compile(r"(^|_)(top_?p|nucleus)(_|$)"),
    "top_k": re.compile(r"(^|_)top_?k(_|$)"),
    "min_p": re.compile(r"(^|_)min_?p(_|$)"),
    "temperature": re.compile(r"(^|_)temperature(_|$)"),
    "penalty": re.compile(r"(^|_)(repetition|repeat)_penal(ty|ize|ise|izer|iser)(_|$)|(^|_)penali[sz]e_repeat"),
}
_GENERAL = re.compile(
    r"(^|_)(samples?|sampling|draw|gumbel_sample|logits?_filter|filter(ed|ing)?_logits?|filter_scores?"
    r"|warp(er)?|(next|choose)_tokens?|process_logits?|logits?_process(or)?)(_|$)"
)
_ABOUT_OTHER = re.compile(  # k of something that is no token
    r"gat(e|ing)|rout|expert|moe|attn|attention|loss|acc(uracy)?(_|$)|precision|recall|hit|ndcg|metric|retriev|keypoint"
    r"|sparse|prun|pool|rank|beam|ind(ex|ices)|neighbo|memory|anchor|box|proposal|soft|straight|set_|get_|group|activat"
    r"|negativ|point|frame|node|edge|patch|posterior|prior|latent|noise|inv(erse)?(_|$)|segm|cell|detect|label|diam"
)
_BY_ARGUMENT: dict[Kind, re.Pattern[str]] = {
    "top_p": re.compile(r"(sampling_|filter_)?(top_?p|nucleus(_p)?)(_thres\w*|_value|_filter)?"),
    "top_k": re.compile(r"(sampling_|filter_)?top_?k(_value|_filter|_tokens)?"),
    "min_p": re.compile(r"min_?p(_thres\w*|_value)?"),
    "temperature": re.compile(r"temperature|temp"),
    "penalty": re.compile(r"(repetition_|repeat_)?penalty"),
}
_PLAIN: dict[Kind, re.Pattern[str]] = {  # of a function whose own name says what it does
    "top_p": re.compile(r"p|prob|mass|(p_|filter_|prob_)?thres(h|hold)?|cut_?off"),
    "top_k": re.compile(r"k|n|num_\w+|n_tokens"),
    "share": re.compile(r"(filter_)?thres(h|hold)?|frac\w*|ratio|share"),
    "min_p": re.compile(r"p|thres(h|hold)?|ratio|cut_?off"),
    "temperature": re.compile(r"t|tau"),
    "penalty": re.compile(r"alpha|theta|factor"),
}
_SCORES = re.compile(r"(^|_)(logits?|scores?|(log_?)?prob(s|abilit\w+)?|lprobs?|logp\w*|dist(ribution)?)(_|$)")
_ANY_TENSOR = re.compile(r"x|t|inputs?|tensor|y|out|output")
_LOGS = re.compile(r"log_?p|lprob|log_softmax")
_IDS = re.compile(
    r"(input_|token_|prev(ious)?_|generated_|past_|output_|context_|all_|recent_|seen_|last_)*"
    r"(ids?|tokens?|sequences?|seq|generated|history|previous|past)"
)


@dataclass(frozen=True)
class Signature:
    """Which arguments of a function are what; `numbers` are those by name, of each kind one.

    `ids` is the name of earlier tokens, `generator` of a generator and `times` of how many are drawn where they have to
    be given; `takes_list` says of earlier tokens that they are no tensor.
    """

    scores: str
    given: Given
    numbers: dict[Kind, inspect.Parameter]
    ids: str = ""
    generator: str = ""
    times: str = ""
    takes_list: bool = False

    @property
    def idle(self) -> dict[Kind, float]:
        """Values that do nothing, for those whose defaults do something."""
        found: dict[Kind, float] = {}
        for kind, parameter in self.numbers.items():
            is_off = any(parameter.default is each or parameter.default == each for each in OFF[kind])
            if kind in IDLE and not is_off:
                found[kind] = IDLE[kind]
        return found


def snake(name: str) -> str:
    """A name in small letters with underscores, however it is written: TopPWarper as top_p_warper."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def kinds_of(name: str) -> set[Kind] | None:
    """What a function's name says that it does; nothing certain of a sampler; None of a function of another kind."""
    name = snake(name)
    if _ABOUT_OTHER.search(name):
        return None
    found = {kind for kind, pattern in _BY_FUNCTION.items() if pattern.search(name)}
    return found if found or _GENERAL.search(name) else None


def signature_of(
    function: Callable[..., Any], kinds: set[Kind], made: dict[Kind, inspect.Parameter] | None = None
) -> Signature | None:
    """How to call it; None where something has to be given that is not known. `made` are numbers it has already."""
    read = attempt(lambda: inspect.signature(function).parameters)
    if isinstance(read, Caught):
        return None
    parameters = [each for each in read.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if any(each.kind is each.POSITIONAL_ONLY for each in parameters):
        return None
    numbers = made or numbers_of(parameters[1:], kinds)  # the first is what is filtered
    rest = [each for each in parameters if all(each is not other for other in numbers.values())]
    scores = next((each for each in rest if _SCORES.search(each.name)), None)
    if scores is None and kinds - {"top_k"} and rest and _ANY_TENSOR.fullmatch(rest[0].name):
        scores = rest[0]
    if scores is None or not numbers:
        return None
    needed = [each for each in rest if each.default is each.empty and each is not scores]
    ids = next((each for each in rest if _IDS.fullmatch(each.name)), None)
    generator = next((each.name for each in needed if each.name in ("generator", "rng")), "")
    times = next((each.name for each in needed if each.name in ("num_samples", "n_samples")), "")
    is_needed = ids is not None and ids in needed
    if len(needed) > is_needed + bool(generator) + bool(times):
        return None
    name = ids.name if ids is not None and is_needed else ""
    takes_list = ids is not None and "list" in str(ids.annotation).lower()
    return Signature(scores.name, _given(scores.name), numbers, name, generator, times, takes_list)


def numbers_of(parameters: list[inspect.Parameter], kinds: set[Kind]) -> dict[Kind, inspect.Parameter]:
    """The numbers among the parameters that say how many tokens are kept, and how likely each is."""
    found: dict[Kind, inspect.Parameter] = {}
    for each in parameters:
        name = snake(each.name)
        kind = next((kind for kind, pattern in _BY_ARGUMENT.items() if pattern.fullmatch(name)), None)
        if kind is None and len(kinds) == 1:
            own = next(iter(kinds))
            among: tuple[Kind, ...] = ("top_k", "share") if own == "top_k" else (own,)
            kind = next((kind for kind in among if _PLAIN[kind].fullmatch(name)), None)
        if kind == "top_k" and (isinstance(each.default, float) or each.annotation in (float, "float")):
            kind = "share"
        if kind is not None and kind not in found and not isinstance(each.default, (str, bool)):
            found[kind] = each
    return found


def _given(name: str) -> Given:
    name = snake(name)
    if "logit" in name:
        return "logits"
    if _LOGS.search(name):
        return "log_probs"
    return "probs" if "prob" in name else "either"
