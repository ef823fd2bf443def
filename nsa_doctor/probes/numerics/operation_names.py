"""Names of classes and functions that say which operation is meant, one whose definition is known exactly."""

import re
from collections.abc import Collection

_AROUND = r"(?:my|own|custom|simple|naive|plain|py|python|pytorch|torch|native|the)"
_BEHIND = r"(?:activation|layer|module|function|func|fn|op|impl|jit|me|python|native|fp32|float32)"
_OPERATIONS = {
    "swish": r"swish|silu",
    "gelu": r"(?:quick|new|fast|accurate)?gelu(?:tanh|new|quick|fast|accurate|erf|exact)?",
    "mish": r"mish",
    "squaredrelu": r"relusquared?|squaredrelu|squarerelu|relusq",
    "relu2": r"relu2",
    "glu": r"glu",
    "swiglu": r"swiglu",
    "geglu": r"geglu",
    "reglu": r"reglu",
    "layerscale": r"layerscale(?:2d)?",
    "rmsnorm": r"rmsnorm(?:ali[sz]ation)?(?:\dd|nobias)?",
    "layernorm": r"layernorm(?:ali[sz]ation)?(?:\dd|nobias|1p|channelsfirst|channelslast)?",
    "l2norm": r"l2norm(?:ali[sz]ation)?|scalenorm",
}
_PATTERNS = {
    operation: re.compile(rf"{_AROUND}?(?:fp32)?(?:{names})(?:{_BEHIND})*") for operation, names in _OPERATIONS.items()
}
_OF_A_MODEL = re.compile(
    r"\w*(Attention|MLP|Mlp|FeedForward|FFN|Layer|Block|Model|Encoder|Decoder|Embeddings?)|For[A-Z]\w+"
)
_OF_A_WHOLE = re.compile(r"[a-z0-9](Config|Model|ModelArgs|PreTrainedModel|For[A-Z]\w+)$")
# With these a name says that another operation is meant.
_OF_ANOTHER = re.compile(
    r"adaptive|ada|bi|binary|bit|block|causal|complex|cond|conditional|cross|deep|double|dual|dynamic|gated?|graph|group(ed)?|hard"
    r"|hybrid|hyper|hyperbolic|int\d|joint|leaky|learn(ed|able)|linear|local|log|lorentz|low|mask(ed)?|mixed|multi|multi_?head|parallel|poincare|power|q|quant|quantized"
    r"|residual|scaled|shared|shifted|smooth|soft|sparse|spatial|spectral|spherical|sub|taylor|temporal|time|weighted",
    re.IGNORECASE,
)
_FEWEST_BESIDE = 2


def operation_of(name: str, beside: Collection[str] = (), models: Collection[str] = ()) -> str:
    """The operation that the name says it is, and nothing beside it; empty where it says none of them.

    What a name begins with as one of the `models` does and several parts `beside` it is the model's, and no word of
    the operation.
    """
    plain = name.replace("_", "").lower()
    if said := next((each for each, pattern in _PATTERNS.items() if pattern.fullmatch(plain)), ""):
        return said
    for prefix in _beginnings(name) if beside else ():
        others = {each for each in beside if each.startswith(prefix)}
        rests = [each.removeprefix(prefix) for each in others]
        is_a_models = any(each.startswith(prefix) for each in models)
        is_models = is_a_models and sum(bool(_OF_A_MODEL.fullmatch(rest)) for rest in rests) >= _FEWEST_BESIDE
        if is_models and not _OF_ANOTHER.fullmatch(prefix):
            return operation_of(name.removeprefix(prefix))
    return ""


def _beginnings(name: str) -> list[str]:
    """What comes before each capital in it, the longest first."""
    return [name[:at] for at in range(len(name) - 1, 0, -1) if name[at].isupper()]


def models_among(names: Collection[str]) -> set[str]:
    """Those that are names of whole models, or of what they are configured by."""
    return {each for each in names if _OF_A_WHOLE.search(each)}
