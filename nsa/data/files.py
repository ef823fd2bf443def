"""The local files a dataset names: one file, a folder or a glob; each looked at before it is read."""

import glob
import gzip
import stat
from collections.abc import Iterable
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path

from nsa.data.errors import Blame, DataError
from nsa.strict import plain

SUFFIXES = {
    "text": (".txt", ".text", ".md", ".txt.gz"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz"),
    "parquet": (".parquet",),
}


def local_files(kind: str, path: str) -> tuple[Path, ...]:
    """All files of `kind:path`, sorted by name; raises DataError where there is none or one that cannot be read."""
    found = tuple(sorted(_named(kind, path)))
    for file in found:
        _look_at(file)
    if not any(file.stat().st_size for file in found):
        raise DataError(f"{kind}:{plain(path)}: {'the file is' if len(found) == 1 else 'all files are'} empty")
    return found


def fingerprint(files: Iterable[Path]) -> str:
    """Names and sizes, so that a resumed run notices other files."""
    facts = "\n".join(f"{file.stat().st_size} {file.name!r}" for file in files)
    return blake2b(facts.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def first_bad_line(file: Path) -> str:
    """`line 7 is not UTF-8 text (byte 0xff)`, for a file known to have one."""
    with _open_plain(file) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"line {number} is not UTF-8 text (byte {line[error.start]:#04x})"
    return "is not UTF-8 text"


def _named(kind: str, path: str) -> list[Path]:
    with Blame("open", f"{kind}:{path}"):  # a name too long, a null character, a folder that may not be entered
        place = Path(path).expanduser()
        if place.is_dir():
            files = [file for file in place.rglob("*") if _is_of(kind, file, place)]
            missing = f"the folder has no file that ends in {', '.join(SUFFIXES[kind])}"
        elif place.exists():
            return [place]
        else:
            files = [Path(name) for name in glob.glob(str(place), recursive=True) if not Path(name).is_dir()]
            missing = "there is no such file or folder, and as a pattern it fits none"
    if not files:
        raise DataError(f"{kind}:{plain(path)}: {missing}")
    return files


def _is_of(kind: str, file: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.name.lower().endswith(SUFFIXES[kind]) and not is_hidden and file.is_file()


def _look_at(file: Path) -> None:
    name = plain(str(file))
    if "::" in str(file.absolute()):  # the library would take the rest for the address of an archive
        raise DataError(f"{name}: the path must not hold '::'; give the file another name")
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise DataError(f"{name}: must be a regular file, not a pipe or a device")
        with file.open("rb"):
            pass
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from None


def _open_plain(file: Path) -> BufferedReader | gzip.GzipFile:
    return gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb")
