"""Plausible values for what a function that builds an optimizer asks for, by name."""

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

_VALUES: tuple[tuple[re.Pattern[str], Any], ...] = tuple(
    (re.compile(pattern), value)
    for pattern, value in (
        (r"(base_|init_|initial_|peak_|max_|adam_)?(lr|learning_rate)", 1e-3),
        (r"min_(lr|learning_rate)", 1e-5),
        (r"(adam_)?weight_?decay|wd|decay|l2", 0.1),
        (r"(adam_|optim_)?betas", (0.9, 0.95)),
        (r"(adam_)?(beta_?1|b1)", 0.9),
        (r"(adam_)?(beta_?2|b2)", 0.95),
        (r"(adam_)?(eps|epsilon)", 1e-8),
        (r"momentum", 0.9),
        (r"device(_type)?|device_kind", "cpu"),
        (r"layer_(lr_)?decay|lr_decay(_rate)?|llrd|layerwise_(lr_)?decay(_rate)?|decay_rate", 0.75),
        (r"(optim|optimizer|opt)(_name|_type|_cls_name)?", "adamw"),
        (r"(no_(weight_)?decay|skip|no_wd)(_(list|names?|params|keywords|keys))?", ()),
        (r"((num|max|total|n|warmup)_)*(training_|train_)?(steps|iters|iterations|epochs)|steps_per_epoch", 100),
        (r"rank|local_rank", 0),
        (r"world_size", 1),
        (r"(use_)?fused|verbose|foreach|capturable|amsgrad|debug", False),
    )
)
MODELS = frozenset({"model", "module", "net", "network", "nnet", "m", "mod", "nn_model", "model_or_params"})
_CONFIGURATIONS = re.compile(
    r"(\w+_)?(config|cfg|conf|args|hparams|hps|settings|opts?|options|hyperparams|hyperparameters)"
)
_HELD = ("config", "cfg", "args", "hparams", "conf", "settings", "params")


def value_of(name: str, holder: nn.Module) -> Any:
    """What is given for an argument of that name. Raises LookupError where nothing is known of it."""
    if name in MODELS:
        return holder
    lower = name.lower()
    for pattern, value in _VALUES:
        if pattern.fullmatch(lower):
            return value
    if _CONFIGURATIONS.fullmatch(lower):
        return Settings(holder)
    raise LookupError(f"nothing is known of an argument {name!r}")


class Settings:
    """A configuration: what the module's own says, and plausible values for the rest, by attribute or by key."""

    def __init__(self, holder: nn.Module) -> None:
        self._holder = holder
        self._held = [vars(holder)[each] for each in _HELD if each in vars(holder)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except LookupError as error:
            raise AttributeError(name) from error

    def __getitem__(self, name: str) -> Any:
        for each in self._held:
            if isinstance(each, Mapping) and name in each:
                return each[name]
            if not isinstance(each, Mapping) and hasattr(each, name):
                return getattr(each, name)
        return value_of(name, self._holder)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of that name, as a mapping gives it."""
        try:
            return self[name]
        except LookupError:
            return default
