"""What goes wrong with data: one sentence that names the stage, the source and what to do."""

import gzip
import lzma
import zlib
from types import TracebackType

from nsa.strict import plain


class DataError(ValueError):
    """Data that cannot be had or used; one sentence that names the source."""


class LoaderStalledError(DataError):
    """No batch came in time; `stage` of `source` is where the loader has been for `seconds`."""

    def __init__(self, stage: str, seconds: float, source: str, limit_seconds: float) -> None:
        super().__init__(
            f"no batch came within {limit_seconds:g} s: the loader has been at stage {stage} of {plain(source)} "
            f"for {seconds:.1f} s"
        )
        self.stage, self.seconds, self.source, self.limit_seconds = stage, seconds, source, limit_seconds

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.stage, self.seconds, self.source, self.limit_seconds)


class Blame:
    """Turns whatever a library raises inside a `with` into a DataError that names the stage and the source."""

    def __init__(self, stage: str, source: str) -> None:
        self._stage, self._source = stage, source

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, DataError):
            raise DataError(f"{plain(self._source)}: {reason(error)} (stage {self._stage})") from error


def reason(error: Exception) -> str:
    """What an exception of a library means for the reader of a file, in a few words."""
    match error:
        case UnicodeDecodeError():
            return f"is not UTF-8 text (byte {error.object[error.start]:#04x})"
        case UnicodeEncodeError():
            return f"holds half a surrogate pair at character {error.start}, which is no text"
        case FileNotFoundError() if type(error) is FileNotFoundError:  # and none of the hub's
            return "has vanished"
        case EOFError() | gzip.BadGzipFile() | zlib.error() | lzma.LZMAError():
            return f"is cut short or damaged: {_first_line(error)}"
        case OSError() if error.strerror:
            return f"cannot be read: {error.strerror}"
        case ModuleNotFoundError() if error.name:
            return f"needs the package {error.name}: pip install {error.name}"
    return f"cannot be read: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = str(error).split("\n")
    return plain(lines[0][:160].strip()) or "no reason given"
