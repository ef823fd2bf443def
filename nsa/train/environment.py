"""env.json: which run this is, for whoever reads its folder later."""

import hashlib
import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nsa.backends import requested_flags
from nsa.config import RunConfig
from nsa.train.world import World

_SECONDS = 10.0
_HASH_LENGTH = 16


def describe(config: RunConfig, world: World, device: torch.device, entropy: float | None) -> dict[str, Any]:
    """Plain data. `configuration_hash` is of the model's part alone, as nsa-doctor takes it."""
    is_gpu = device.type == "cuda"
    return {
        "config": config.model_dump(mode="json"),
        "configuration_hash": configuration_hash(config),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if is_gpu else f"{torch.get_num_threads()} threads",
        "dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[config.runtime.precision],
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "version": _version(),
        "commit": _commit(),
        "flags": {name: value for name, value in requested_flags().items() if value is not None},
        "argv": list(sys.argv),
        "world_size": world.size,
        "entropy": entropy,
    }


def configuration_hash(config: RunConfig) -> str:
    """A short hash of the model's configuration, the same whatever the order of keys."""
    text = json.dumps(config.model.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def _version() -> str:
    try:
        return version("nsa-doctor")
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Of the checkout this package lies in, `+ changes` where the tree differs from it; empty outside one."""
    folder = str(Path(__file__).parent)
    commit = _git(folder, "rev-parse", "HEAD")[:12]
    if not commit or not _git(folder, "ls-files", "--", __file__):
        return ""
    return f"{commit} + changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: str, *words: str) -> str:
    command = ["git", "-c", "core.fsmonitor=false", "-C", folder, *words]
    try:
        answer = subprocess.run(  # noqa: S603 (words of our own, no shell)
            command, check=False, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
