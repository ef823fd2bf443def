"""Reports with pictures: a sweep, times, a training run and gates, as small as shows them."""

import math
from dataclasses import replace

from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.measurement import MODES, Census, Measurement, Place, Point, Trouble
from tests.nsa_doctor.reports import ruled

BARE = Report(command="run", subject={"name": "x"}, options={}, environment={})
PASSED = replace(BARE, results=(Result(code="FWD101", name="raises-on-valid-input", verdict=Verdict.PASS),))
TROUBLES = ("raised", "wrong_shape", "out_of_memory", "timeout", "died", "not_measured")


def census(name: str, num_nan: int = 0, num_inf: int = 0) -> Census:
    bad = min(1, num_nan + num_inf)
    return Census(
        name=name, num_values=8, num_nan=num_nan, num_inf=num_inf, largest=1.5, num_rows=4, num_bad_rows=3 * bad
    )


def measured(length: int, *censuses: Census, seconds: float | None = None, **point: str) -> Measurement:
    given = Point(**{"length": length, **point})
    return Measurement(point=given, censuses=censuses, seconds=seconds, peak_bytes=1000 * length if seconds else None)


def troubled(length: int, kind: str) -> Measurement:
    return Measurement(point=Point(length=length), trouble=Trouble(kind=kind, message=kind, place=Place()))


def swept() -> Report:
    """Every state of a cell, three modes, unusual input and a branch."""
    fine = tuple(
        measured(
            length, census("compressed"), census("output"), census("gradients"), seconds=1e-6 * length**2, mode=mode
        )
        for length in (16, 32, 64, 128)
        for mode in MODES
    )
    bad = (
        measured(17, census("compressed"), census("output", num_nan=2), census("gradients", num_nan=1, num_inf=1)),
        measured(18, census("compressed"), census("output", num_inf=1), census("gradients")),
        measured(64, census("output", num_nan=1), values="zeros"),
        *(troubled(200 + number, kind) for number, kind in enumerate(TROUBLES)),
    )
    return replace(BARE, command="sweep", measurements=(*fine, *bad))


def timed(power: float = 2.0) -> Report:
    """Times that grow with a power of the length, and memory that grows with it."""

    def row(length: int) -> dict[str, object]:
        own = [1e-6 * length**power * factor for factor in (0.98, 1.0, 1.02)]
        return {
            "length": length,
            "mode": "train",
            "forward": own,
            "train": [3 * seconds for seconds in own],
            "dense_forward": [1e-4],
            "peak_bytes": 4096 * length,
            "operations": 7 * length,
            "waits": 0,
            "forward_tokens_per_second": length / own[1],
            "spread": 0.02,
            "operations_per_token": 7.0,
            "waits_per_token": 0.0,
        }

    exponent = {"value": power, "low": power - 0.1, "high": power + 0.1}
    exponents = {"forward seconds": exponent, "train seconds": exponent, "peak bytes": None, "operations": None}
    rows = [row(length) for length in (64, 128, 256, 512)]
    shares = {"select": 0.75, "slide": 0.25}
    return replace(PASSED, command="throughput", throughput={"rows": rows, "exponents": exponents, "shares": shares})


def trained(count: int = 400) -> Report:
    """A run that falls silent once, and whose loss is not finite twice."""
    times = [1.7e9 + 2.0 * step + (600.0 if step >= count // 2 else 0.0) for step in range(count)]
    losses: list[float | None] = [4.0 + 6.0 * math.exp(-step / 80) for step in range(count)]
    losses[1], losses[-2], losses[-1] = None, math.nan, math.inf
    run = {
        "folder": "runs/a",
        "device_name": "NVIDIA A100",
        "series": {
            "ts": times,
            "step": list(range(count)),
            "loss": losses,
            "tokens_per_second": [39_000.0 + step % 7 for step in range(count)],
            "memory": [3.0e10 + 1e6 * step for step in range(count)],
        },
        "silences": [[times[count // 2 - 1], 602.0], [times[3], 2.0]],
        "numbers": {"steps": float(count - 1), "loss_ratio": 0.4, "resumes": None},
        "watchdog_dumps": ["watchdog_stackdump_1.txt"],
        "checkpoints": ["step_100.pt", "step_200.pt"],
    }
    return replace(PASSED, command="go-no-go", run=run)


def gate(
    layer: str, verdict: str = "healthy", checkpoint: str = "model.pt", is_probed: bool = True
) -> dict[str, object]:
    branches = [
        {"name": name, "mean": mean, "least": mean / 2, "most": min(1.0, mean * 1.5)}
        for name, mean in (("compressed", 0.2), ("selected", 0.3), ("sliding", 0.5))
    ]
    probe = {
        "num_inputs": 256,
        "activation": "softmax",
        "branches": branches,
        "entropy": 0.9,
        "flat": 0.0,
        "spread": 0.2,
        "leader": 0,
        "led": 0.0,
        "is_stuck": False,
        "dead": [],
    }
    figures = {
        "shape": [3, 8],
        "dtype": "float32",
        "mean": 0.001,
        "std": 0.02,
        "norm": 0.1,
        "zeros": 0.0,
        "num_values": 24,
        "num_bad": 0,
    }
    return {
        "checkpoint": checkpoint,
        "verdict": verdict,
        "illnesses": [] if verdict in ("healthy", "not probed") else [verdict],
        "layer": layer,
        "module": f"{layer}.fc2",
        "form": "linear 8 to 3, softmax",
        "weight": figures,
        "bias": None,
        "hidden_weight": None,
        "hidden_bias": None,
        "probe": probe if is_probed else None,
        "unprobed": "" if is_probed else "its shape is not known",
        "drift": {"since": "model.pt", "relative": 0.25, "others": 1} if checkpoint != "model.pt" else None,
    }


def gated() -> Report:
    """Two files: a faulty gate in the first, one that cannot be probed in the second."""
    gates = (
        gate("layers.0.gate"),
        gate("layers.1.gate", "collapsed"),
        gate("layers.0.gate", checkpoint="later.pt"),
        gate("layers.1.gate", "not probed", "later.pt", is_probed=False),
    )
    return replace(BARE, command="gate-stats", gates=gates, subject={"name": "2 checkpoints"})


def everything() -> Report:
    """A ruling with all that a report can hold, and a picture of each kind."""
    report = ruled()
    return replace(
        report,
        measurements=(*report.measurements, *swept().measurements),
        throughput=timed().throughput,
        run=trained().run,
        gates=gated().gates,
    )
