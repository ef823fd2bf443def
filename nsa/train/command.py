"""`python -m nsa.train`: parse, train, and end with one sentence and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torch.distributed import is_torchelastic_launched

from nsa import ConfigError
from nsa.config import RunConfig, load_config, with_changes
from nsa.train.failures import TrainError
from nsa.train.progress import Progress, quiet_exit
from nsa.train.replay import replay
from nsa.train.run import train

_CODES = """\
exit codes: 0 trained to the end; 2 refused before the first step; 3 a loss or gradient that is not finite; 4 no more
data; 5 a file that cannot be written; 6 another process of the run; 7 out of memory; 130 and 143 saved and left after
SIGINT and SIGTERM (--resume auto goes on). SIGUSR1 writes stackdump_<ts>.txt and the run goes on.
Several processes: torchrun --nproc-per-node N -m nsa.train ...
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.replay is not None:
            for line in replay(Path(asked.replay)):
                Progress(sys.stdout, 0, 1).say(line)
        else:
            train(_configuration(asked), resume=asked.resume)
    except ConfigError as error:
        return _end(str(error), 2)
    except TrainError as error:
        return _end(str(error), error.code)
    except OSError as error:  # of a place that only reading was tried in
        return _end(f"{error.filename or 'a file'}: {error.strerror or error}", 5)
    except KeyboardInterrupt:
        return _end("interrupted before the first step", 130)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.train",
        description="Train the model of a configuration file.",
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="a YAML file, or a built-in configuration by name")
    what.add_argument(
        "--replay", metavar="FOLDER", help="compute a nonfinite_step_<n> of a run again, and nothing else"
    )
    parser.add_argument("--dataset", help="in place of data.dataset: synthetic, text:PATH, jsonl:PATH, ...")
    parser.add_argument("--steps", help="in place of train.steps")
    parser.add_argument("--out-dir", help="in place of train.out_dir")
    parser.add_argument("--device", help="in place of runtime.device")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="in place of any value of the file; may be given several times",
    )
    parser.add_argument(
        "--resume",
        metavar="auto|PATH",
        help="go on from the newest checkpoint of train.out_dir, from a checkpoint or a run's folder, or begin with "
        "the weights of a .pt or .safetensors file",
    )
    return parser


def _configuration(asked: argparse.Namespace) -> RunConfig:
    named = {"data.dataset": asked.dataset, "train.out_dir": asked.out_dir, "runtime.device": asked.device}
    changes = [f"{key}='{value.replace(chr(39), chr(39) * 2)}'" for key, value in named.items() if value is not None]
    if asked.steps is not None:
        changes.append(f"train.steps={asked.steps}")
    return with_changes(load_config(asked.config), [*changes, *asked.set])


def _end(sentence: str, code: int) -> int:
    try:
        sys.stderr.write(f"nsa.train: {sentence}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return code
    return code


def leave(code: int) -> NoReturn:
    """End this process."""
    quiet_exit()
    if is_torchelastic_launched():
        os._exit(code)  # taking an exchange down whose other end is gone may wait for ever
    sys.exit(code)
