"""Which configuration and model a subject is built of: those of a model type, or a class that the user names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from nsa_doctor.adapters.hugging_face.installed import config_class, library, named_config
from nsa_doctor.core.like import names_a_class
from nsa_doctor.probes.internal import maker_of_models
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.named import import_named


@dataclass(frozen=True)
class ModelClasses:
    """A class of configurations and what makes a model of one.

    named is the model type, or package.module:Class whose own maker is `make`; given, values of a config.json.
    """

    named: str
    config: Any
    given: Mapping[str, Any]
    make: Callable[..., nn.Module] | None = None

    def built(self, values: Mapping[str, Any], **chosen: str) -> nn.Module:
        """A model with these values of its configuration; chosen, its implementations."""
        config = self.config(**values)
        make = self.make or library().AutoModelForCausalLM.from_config
        module: nn.Module = make(config, **chosen)
        return module

    def script_lines(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Plain Python that binds `config` to the same configuration, and `build` to what makes a model of one."""
        if self.make is None:
            return (
                "import re, torch, transformers",
                f"config = transformers.AutoConfig.for_model({self.named!r}, **{dict(values)!r})",
                "build = transformers.AutoModelForCausalLM.from_config",
            )
        module, _, path = self.named.partition(":")
        return (
            f"import re, torch, transformers, {module}",
            f"config = {module}.{path}.config_class(**{dict(values)!r})",
            f"build = {module}.{path}._from_config",
        )


def classes_of(name: str) -> ModelClasses:
    """What stands behind `hf:`: a model type, a path to a config.json or package.module:Class.

    Raises SubjectUnusableError for what is none of these.
    """
    if not names_a_class(name):
        model_type, given = named_config(name)
        return ModelClasses(model_type, config_class(model_type), given)
    library()  # without it, what imports it cannot be imported either, which would name no extra
    found = import_named(name, "class")
    config = getattr(found, "config_class", None)
    make = maker_of_models(found) if isinstance(found, type) else None
    if make is None or not isinstance(config, type):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise SubjectUnusableError(
            f"subject hf:{name} must be a class of transformers' PreTrainedModel whose config_class is set, got {kind}"
        )
    return ModelClasses(name, config, {}, make)
