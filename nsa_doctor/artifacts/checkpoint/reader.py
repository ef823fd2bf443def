"""Reads checkpoints from outside: one process for each, ended when it overruns, and what it found as a record.

What that process reads with is our own and not `torch.load(weights_only=True, mmap=True)` or the safetensors package:
torch loads hostile archives that are refused here (two entries of one name, a second pickle behind the first, bytes
that do not match their checksum), and makes a bytearray as large as a pickle asks. Both refuse what is read here:
settings beside the weights that hold data, pickles of protocols 4 and 5, dtypes that the package does not know.
"""

from dataclasses import asdict, dataclass

from nsa_doctor.artifacts.checkpoint.fault import quoted
from nsa_doctor.artifacts.checkpoint.record import Activation, Reading
from nsa_doctor.core.errors import InternalError
from nsa_doctor.isolation.failures import WorkerDiedError, WorkerHungError, WorkerSlowError
from nsa_doctor.isolation.worker_process import WorkerProcess

_ROOM = "nsa_doctor.worker.checkpoint_room"
_SPARE_SECONDS = 5.0  # for Python and numpy


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What to look for in a checkpoint, and the seconds it may take; `pattern` None finds gates by themselves.

    With `wants_shapes` the shapes of all tensors are read too.
    """

    pattern: str | None = None
    num_branches: int = 3
    activation: Activation | None = None
    seed: int = 0
    seconds: float = 60.0
    wants_shapes: bool = False


def read_checkpoint(path: str, request: ReadRequest, since: str | None = None) -> Reading:
    """What the file or folder holds, and with `since` how far its gates went since an earlier checkpoint.

    Raises InternalError where the doctor's own code fails, and KeyboardInterrupt.
    """
    asked = {"path": path, "since": since, **asdict(request)}
    seconds = request.seconds + _SPARE_SECONDS
    try:
        with WorkerProcess(_ROOM, is_fresh=True) as child:
            return Reading.from_json(child.ask(asked, seconds, seconds)["read"])
    except (WorkerHungError, WorkerSlowError):
        sentence = f"{quoted(path)} is not read after {request.seconds:g} s; --timeout allows more"
    except WorkerDiedError as death:
        if death.status > 0:
            message = f"the process that reads ended with exit code {death.status}"
            raise InternalError(message, death.crash.last_words) from death
        sentence = f"{quoted(path)} takes more than it may: the process that reads it died by signal {-death.status}"
    return Reading(path=path, fault="limit", sentence=sentence)
