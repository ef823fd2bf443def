"""Which subject exactly: a hash of its configuration, the version and the commit of its sources, as far as known."""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

_SECONDS = 10.0
_LENGTH = 16


def digest(value: Any) -> str:
    """A short hash of plain data, the same whatever the order of keys."""
    return digest_of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def digest_of_bytes(content: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(content).hexdigest()[:_LENGTH]


def commit_of(file: str) -> str:
    """The commit of the checkout that holds a file, `+ changes` where the tree differs from it; empty outside one."""
    folder = str(Path(file).parent)
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit or not _git(folder, "ls-files", "--", file):
        return ""
    return f"{commit[:12]} + changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit[:12]


_distributions = cache(packages_distributions)  # what is installed is read once


def version_of(packages: Sequence[str]) -> str:
    """`name version` of the distributions these packages come from."""
    known = _distributions()
    found = {}
    for name in dict.fromkeys(each for package in packages for each in known.get(package, ())):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _git(folder: str, *words: str) -> str:
    """What git answers; nothing where there is no git, no repository, or no answer in time."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", folder, *words]
    try:
        answer = subprocess.run(  # noqa: S603 (words of our own, no shell)
            command, check=False, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
