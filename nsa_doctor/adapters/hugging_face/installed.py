"""The installed transformers: which model types it has, and their classes; imported late, and only where asked for."""

import difflib
import importlib
import json
from pathlib import Path
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.like import CONFIG_FILE
from nsa_doctor.subject.contract import SubjectUnusableError

_INSTALL = "pip install 'transformers>=5.23'"
_MOST_NAMES = 3


def library() -> Any:
    """The package transformers; raises SubjectUnusableError where it is missing."""
    found = attempt(lambda: importlib.import_module("transformers"))
    if isinstance(found, Caught):
        if isinstance(found.error, ModuleNotFoundError) and found.error.name == "transformers":
            raise SubjectUnusableError(f"hf: subjects need transformers, which is not installed: {_INSTALL}")
        raise SubjectUnusableError(f"transformers cannot be imported: {found.sentence}") from found.error
    return found


def causal_types() -> tuple[str, ...]:
    """Every model type that has a causal language model there."""
    library()
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return tuple(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def config_class(model_type: str) -> Any:
    """The class of a type's configuration; raises SubjectUnusableError for a type that is none, with the nearest."""
    known = causal_types()
    if model_type not in known:
        near = difflib.get_close_matches(model_type, known, n=_MOST_NAMES, cutoff=0.0)
        version = library().__version__
        raise SubjectUnusableError(
            f"transformers {version} has no causal language model of type {model_type!r}; the nearest are "
            f"{', '.join(near)}"
        )
    return importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[model_type]


def named_config(name: str) -> tuple[str, dict[str, Any]]:
    """Type and values of what stands behind `hf:`, a model type, or a path to a config.json or to its folder.

    A type goes before a folder of its name.

    Raises SubjectUnusableError for a file that is no configuration.
    """
    path = Path(name)
    if (path / CONFIG_FILE).is_file() and name not in causal_types():
        path = path / CONFIG_FILE
    if path.suffix != ".json":
        return name, {}
    read = attempt(lambda: json.loads(path.read_text(encoding="utf-8")))
    if isinstance(read, Caught):
        raise SubjectUnusableError(f"subject hf:{name} cannot be read: {read.sentence}")
    if not isinstance(read, dict) or not isinstance(read.get("model_type"), str):
        raise SubjectUnusableError(
            f"subject hf:{name} must be a configuration with a model_type, as config.json has it"
        )
    dropped = ("model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "auto_map")
    return read["model_type"], {key: value for key, value in read.items() if key not in dropped}
