"""Whether a training run is evidence about a subject: the same configuration, commit and flags, or a sentence why not.

A report once certified a small model by its run and concluded for a large one:
regressions/r023_verdict_on_another_model.py.
"""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from nsa.strict import ConfigError, plain, shown
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.core.identity import digest

_MOST_DIFFERENCES = 4
_SHORTEST_COMMIT = 7
_SIZES = ("dim", "n_layers", "n_heads", "n_kv_groups", "vocab_size")  # what says best which model it is


def mismatches(run: RunRecord, subject: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for everything that keeps the run from being evidence; `subject` is what a report says of it."""
    name, identity = subject.get("name", "the subject"), subject.get("identity", {})
    where = f"the run in {run.folder}"
    own = model_configuration(run.configuration)
    wanted, wanted_hash = identity.get("configuration") or {}, identity.get("configuration_hash", "")
    run_hash = run.environment.get("configuration_hash")
    if not own and not run_hash:
        yield (
            f"{where} does not say which configuration it had (env.json has neither config nor configuration_hash), "
            f"so it is no evidence about {name}"
        )
    elif not wanted_hash or wanted_hash != (digest(own) if own else run_hash):
        known = _known_as(own)
        differences = _differences(own, wanted) or "its hash differs"
        yield f"{where} is of another configuration{f' ({known})' if known else ''} than {name}: {differences}"
    commit, now = run.environment.get("commit"), identity.get("commit")
    if commit and now and not _is_same_commit(commit, now):
        yield f"{where} was made with commit {plain(str(commit))}; examined is commit {now}"
    flags, flags_now = run.environment.get("flags"), identity.get("flags") or {}
    if flags is not None and not isinstance(flags, dict):
        yield f"{where} records its flags in a form that cannot be compared: {shown(flags)}, not a mapping"
    elif flags is not None:
        run_flags = {key: str(value) for key, value in flags.items() if value is not None}
        if run_flags != dict(flags_now):
            yield f"{where} had the flags {_flags(run_flags)}; examined is {name} with {_flags(flags_now)}"


def model_configuration(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's part of a configuration file, defaults filled in; as it is where it is not one of ours."""
    from nsa.config import parse_config  # torch, which takes its time

    try:
        return parse_config(dict(config)).model.model_dump(mode="json") if config else {}
    except ConfigError:
        part = config.get("model")
        return dict(part) if isinstance(part, dict) else {}


def _differences(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """`dim 128 and not 768, …` for the first few keys that differ."""
    differing = [key for key in {**wanted, **own} if own.get(key) != wanted.get(key)] if own and wanted else []
    differing.sort(key=lambda key: _SIZES.index(key) if key in _SIZES else len(_SIZES))
    parts = [
        f"{plain(str(key))} {reprlib.repr(own.get(key))} and not {reprlib.repr(wanted.get(key))}"
        for key in differing[:_MOST_DIFFERENCES]
    ]
    return ", ".join(parts) + (" …" if differing[_MOST_DIFFERENCES:] else "")


def _known_as(own: Mapping[str, Any]) -> str:
    """The name of the built-in configuration that has this model."""
    from nsa.config import builtin_configs, load_config  # torch, which takes its time

    models = {name: load_config(path).model.model_dump(mode="json") for name, path in builtin_configs().items()}
    return next((name for name, model in models.items() if model == own), "")


def _flags(flags: Mapping[str, Any]) -> str:
    return plain(", ".join(f"{key}={value}" for key, value in sorted(flags.items()))) or "none"


def _is_same_commit(recorded: Any, now: str) -> bool:
    """One may be an abbreviation of the other; what follows the hash, such as `+ changes`, is not compared."""
    one, other = (str(each).split(maxsplit=1)[:1] for each in (recorded, now))
    if not one or not other:
        return False
    shorter, longer = sorted((one[0], other[0]), key=len)
    return len(shorter) >= _SHORTEST_COMMIT and longer.startswith(shorter)
