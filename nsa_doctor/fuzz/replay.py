"""A failing input as a file: versioned, whole in itself, and read as if it came from an enemy."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.text import escaped
from nsa_doctor.core.writing import write_whole
from nsa_doctor.fuzz.cases import KINDS, Case, CaseError, Dtype, Target, read_case

FORMAT: Literal["nsa-doctor-fuzz"] = "nsa-doctor-fuzz"
VERSION: Literal[1] = 1
_MOST_BYTES = 1 << 20
_BUILT_IN = re.compile(r"[a-zA-Z0-9_-]{1,100}")
_Text = Annotated[str, Field(max_length=4096)]


class SavedCase(BaseModel):
    """What a file says. `spec` names foreign code and is never imported unless the user names it too."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["nsa-doctor-fuzz"] = FORMAT
    version: Literal[1] = VERSION
    target: Target
    property: _Text
    message: _Text
    spec: _Text | None = None
    config: _Text | None = None
    config_text: Annotated[str, Field(max_length=_MOST_BYTES)] | None = None
    input: Literal["embeddings", "tokens"] | None = None
    width: Annotated[int, Field(ge=1, le=2**24)] | None = None
    declared: list[_Text] = Field(default_factory=list, max_length=100)
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype | None = None
    seed: int = Field(ge=0, le=2**32 - 1)
    case: dict[str, Any]

    def read(self) -> Case:
        """The case itself."""
        return read_case(json.dumps(self.case))


def save(path: Path, saved: SavedCase) -> None:
    """Write the file, whole or not at all; raises CannotWriteError."""
    write_whole(path, json.dumps(saved.model_dump(), indent=1, allow_nan=False) + "\n")


def load(path: Path) -> SavedCase:
    """Read a file; raises UsageError with one sentence for whatever is wrong with it."""
    shown = escaped(str(path))
    text = _text(path, shown)
    if not text.strip():
        raise UsageError(f"{shown}: is empty; give a file that nsa-doctor fuzz has saved")
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise UsageError(f"{shown}: is not JSON: {escaped(reason)}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{shown}: is not a file of nsa-doctor fuzz; those say format {FORMAT}")
    if document.get("version") != VERSION or isinstance(document.get("version"), bool):
        raise UsageError(f"{shown}: must be of version {VERSION}, got {escaped(repr(document.get('version'))[:50])}")
    try:
        saved = SavedCase.model_validate_json(json.dumps(document))
        kind = saved.read().kind
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = escaped(".".join(str(part) for part in problem["loc"])[:200])
        raise UsageError(f"{shown}: {where}: {escaped(problem['msg'][:300])}") from None
    except CaseError as error:
        raise UsageError(f"{shown}: case.{escaped(str(error)[:500])}") from None
    if kind not in KINDS[saved.target]:
        raise UsageError(
            f"{shown}: case.kind {kind} is none of target {saved.target}: {', '.join(KINDS[saved.target])}"
        )
    if saved.config is not None and saved.config_text is None and not _BUILT_IN.fullmatch(saved.config):
        raise UsageError(f"{shown}: config must be a built-in name where config_text is missing")
    return saved


def _text(path: Path, shown: str) -> str:
    try:
        if not path.is_file():
            what = "is no regular file" if path.exists() else "no such file"
            raise UsageError(f"{shown}: {what}; give a file that nsa-doctor fuzz has saved")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{shown}: is larger than {_MOST_BYTES >> 20} MB, which no saved input is")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown}: is not text in UTF-8") from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not strict JSON")
