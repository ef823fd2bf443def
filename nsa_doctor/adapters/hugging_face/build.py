"""Builds the small random model of a type, the same one each time, with weights that leave no attention uniform."""

import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.adapters.hugging_face.classes import ModelClasses, classes_of
from nsa_doctor.adapters.hugging_face.installed import library
from nsa_doctor.adapters.hugging_face.own_failure import own_failure
from nsa_doctor.adapters.hugging_face.room import count_parameters, require_room
from nsa_doctor.adapters.hugging_face.small_config import FIRST_ORDINARY_TOKEN, small_values
from nsa_doctor.adapters.hugging_face.small_sizes import VOCABULARY
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.internal import claims_flash_attention
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.language_model import CACHES, LanguageModel

QUERIES_AND_KEYS = r"[._](q|k|query|key|qkv|wqkv|c_attn)(_|\.|$)"
_SHARPNESS, _NOISE, _CENTRED = 2.0, 0.1, 0.3
_MASK_CALLS = r"(?:create_causal_mask|mask_kwargs = )[({][^)}]*[)}]"
_TRIED_AT = 20
_MOST_PARAMETERS = 40_000_000
_MOST_FIRST, _CLOSE = 4, 1e-4
_WAYS = (
    {"is_grouped": True, "times": 1, "is_narrow": True},
    {"is_grouped": False, "times": 1, "is_narrow": True},
    {"is_grouped": False, "times": 2, "is_narrow": True},
    {"is_grouped": False, "times": 1, "is_narrow": False},
)
_MIXERS_OF_EXPERTS = ("batched_mm", "grouped_mm")
_ATTENTION = ("eager", "sdpa")  # flex_attention compiles, which a CPU takes minutes for


def build_model(name: str, seed: int = 0, *, is_small: bool = True) -> LanguageModel:
    """The model of a type, a configuration file or a class: in float64 where all of it computes in that, or float32.

    A small one; else one of the sizes that its configuration has, in float32.
    Raises SubjectUnusableError for what cannot be built, with the reason, and SubjectFailedError for what raises by its
    own fault.
    """
    classes = classes_of(name)
    quiet()
    reasons: list[Caught] = []
    if not is_small:
        require_room(name, classes)
    for values in _candidates(classes, reasons, is_small=is_small):
        for dtype in ("float64", "float32")[not is_small :]:
            made = attempt(lambda v=values, d=dtype: _answering(name, classes, v, d, seed))
            if not isinstance(made, Caught):
                return made
            reasons.append(made)
    failure = own_failure(classes, _plain_experts(), reasons, FIRST_ORDINARY_TOKEN)
    if failure is not None:
        raise failure
    version = library().__version__
    raise SubjectUnusableError(
        f"transformers {version} builds no {classes.named} that answers to tokens, "
        f"{'a small' if is_small else 'the'} one of {name if classes.given else 'its default configuration'}: "
        f"{reasons[0].sentence}"
    ) from reasons[0].error


def quiet() -> None:
    """Keep what transformers logs from standard error."""
    warnings.simplefilter("ignore")
    logging = getattr(library(), "logging", None)
    if logging is not None:
        logging.set_verbosity_error()


def sharpen(module: nn.Module) -> None:
    """Give weights the size that keeps activations at one, and queries and keys twice that.

    As transformers draws them, every softmax of a small model is nearly uniform and hides what is read wrongly.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape).to(parameter)
            if parameter.dim() > 1 and bool(parameter.mean().abs() < _CENTRED * parameter.std()):
                gain = _SHARPNESS if re.search(QUERIES_AND_KEYS, f".{name}") else 1.0
                parameter.copy_(noise * gain / parameter.shape[-1] ** 0.5)
            elif parameter.is_floating_point():
                parameter.add_(_NOISE * noise)


def _candidates(classes: ModelClasses, reasons: list[Caught], *, is_small: bool) -> Iterator[dict[str, Any]]:
    """Values to try a configuration with, the most telling first."""
    if not is_small:
        yield dict(classes.given)
        return
    for how in _WAYS:
        values = attempt(lambda how=how: small_values(classes.config, classes.given, **how))
        if not how["is_narrow"] and not isinstance(values, Caught):
            values = attempt(lambda values=values: _few_parameters(classes, values))
        if isinstance(values, Caught):
            reasons.append(values)
        else:
            yield values


def _answering(name: str, classes: ModelClasses, values: dict[str, Any], dtype: str, seed: int) -> LanguageModel:
    """The model, once it has answered with finite logits."""

    def build(**named: str) -> nn.Module:
        torch.manual_seed(seed)
        module = classes.built(values, **(_plain_experts() | named))
        module.to(getattr(torch, dtype)).eval()
        sharpen(module)
        if hasattr(module, "generation_config"):  # its type's own may force tokens
            module.generation_config = library().GenerationConfig()
        return module

    module = build()
    accepts, takes_more = _parameters(module)
    model = LanguageModel(
        name=f"hf:{name}",
        module=module,
        dtype=dtype,
        accepts=accepts,
        takes_more=takes_more,
        tokens=(FIRST_ORDINARY_TOKEN, _vocabulary(module)),
        cache=_cache_name(module, accepts, takes_more),
        is_bidirectional=_is_bidirectional(getattr(module, "config", None)),
        packs=_packs(module),
        build=build,
        narrow=(lambda: _answering(name, classes, values, "float32", seed)) if dtype == "float64" else None,
        implementations=dict(_implementations(module)),
        lines=script_lines(classes, values, dtype, seed),
    )
    with torch.no_grad():
        logits = model.logits(model.ids(_TRIED_AT, 2))
        model = replace(model, first_position=_first_position(model))
    if logits.shape[:2] != (2, _TRIED_AT) or not bool(torch.isfinite(logits).all()):
        raise ValueError(f"its logits must be finite, [2, {_TRIED_AT}, V], got {tuple(logits.shape)}")
    return model


def _plain_experts() -> dict[str, str]:
    """What has experts run by plain torch, where this transformers has other ways (5.0 and newer)."""
    has_ways = hasattr(getattr(library(), "PreTrainedModel", None), "set_experts_implementation")
    return {"experts_implementation": "eager"} if has_ways else {}


def _few_parameters(classes: ModelClasses, values: dict[str, Any]) -> dict[str, Any]:
    """The values, where a model of them has few parameters, which are counted before any is made."""
    number = count_parameters(classes, values)
    if number > _MOST_PARAMETERS:
        raise ValueError(f"no rule makes its sizes small: {number / 1e6:.0f} million parameters are left")
    return values


def script_lines(classes: ModelClasses, values: Mapping[str, Any], dtype: str, seed: int) -> tuple[str, ...]:
    """Plain Python that builds the same model."""
    return (
        *classes.script_lines(values),
        "def made(**named):",
        f"    torch.manual_seed({seed})",
        f"    named = {_plain_experts()!r} | named",
        f"    model = build(config, **named).to(torch.{dtype}).eval()",
        "    for name, p in model.named_parameters():  # as drawn, every softmax would be nearly uniform",
        "        noise = torch.randn(p.shape).to(p)",
        f"        if p.dim() > 1 and p.mean().abs() < {_CENTRED} * p.std():",
        f"            p.data.copy_(noise * ({_SHARPNESS} if re.search(r'{QUERIES_AND_KEYS}', '.' + name) else 1.0)"
        " / p.shape[-1] ** 0.5)",
        f"        elif p.is_floating_point(): p.data.add_({_NOISE} * noise)",
        "    if hasattr(model, 'generation_config'): model.generation_config = transformers.GenerationConfig()",
        "    return model",
        "model = made()",
    )


def _parameters(module: nn.Module) -> tuple[frozenset[str], bool]:
    """Names that a forward takes, its inner model's too where it hands on the rest; whether it takes any."""
    outer = inspect.signature(module.forward).parameters
    takes_more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in outer.values())
    names = {name for name, each in outer.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    inner = getattr(module, "base_model", module)
    if takes_more and inner is not module:
        names |= set(inspect.signature(inner.forward).parameters) - {"kwargs", "args"}
    return frozenset(names), takes_more


def _vocabulary(module: Any) -> int:
    embedding = attempt(lambda: module.get_input_embeddings().num_embeddings)
    return min(VOCABULARY, embedding) if isinstance(embedding, int) else VOCABULARY


def _cache_name(module: nn.Module, accepts: frozenset[str], takes_more: bool) -> str | None:
    """Under which name it answers a cache and takes it back.

    One that its forward has: an answer has the same cache under several, and a forward with **kwargs reads one of them.
    """
    if "use_cache" not in accepts and not takes_more:
        return None
    ids = torch.full((1, 4), FIRST_ORDINARY_TOKEN)
    with torch.no_grad():
        answer = attempt(lambda: module(input_ids=ids, use_cache=True))
    names = sorted((name for name in CACHES if name in accepts or takes_more), key=lambda name: name not in accepts)
    return next((name for name in names if getattr(answer, name, None) is not None), None)


def _is_bidirectional(config: Any) -> bool:
    """Whether its configuration says that it reads later tokens."""
    is_encoder = any(getattr(config, name, True) is False for name in ("is_decoder", "causal", "is_causal"))
    return is_encoder or getattr(config, "attn_type", "") == "bi"


def _packs(module: nn.Module) -> bool:
    """Whether sequences may lie in one row: flash attention serves it, and its masks are made of position_ids."""
    source = attempt(lambda: inspect.getsource(sys.modules[type(module).__module__]))
    calls = re.findall(_MASK_CALLS, source) if isinstance(source, str) else []
    return claims_flash_attention(module) and (not calls or any("position_ids" in each for each in calls))


def _first_position(model: LanguageModel) -> int | None:
    """The position that the model itself gives to a first token; None where it takes none, or counts otherwise."""
    if "position_ids" not in model.accepts:
        return None
    ids = model.ids(_TRIED_AT)
    counted = torch.arange(_TRIED_AT)[None]
    own = model.logits(ids)
    for first in range(_MOST_FIRST):
        asked = attempt(lambda first=first: model.logits(ids, position_ids=counted + first))
        if not isinstance(asked, Caught) and bool(torch.allclose(asked, own, atol=_CLOSE)):
            return first
    return None


def _implementations(module: nn.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """Other implementations that the type may have."""
    for name in _ATTENTION:
        yield name, {"attn_implementation": name}
    if _plain_experts() and any("experts" in name.rpartition(".")[2] for name, _ in module.named_modules()):
        for name in _MIXERS_OF_EXPERTS:
            yield name, {"experts_implementation": name}
