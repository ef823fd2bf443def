"""What a report holds of measurements: a sweep's points, what was timed, and the facts of a training run."""

from pydantic import Field

from nsa_doctor.core import measurement
from nsa_doctor.core.measurement import Mode, TroubleKind, Values
from nsa_doctor.render.report_format.examination import Place
from nsa_doctor.render.report_format.part import Listed, Maybe, Named, Number, Part, optional


class Point(Part):
    """One place to measure."""

    _record = measurement.Point
    length: int = Field(description="Sequence length.")
    dtype: str = Field(description="Dtype of parameters and input.")
    mode: Mode = Field(description="train has gradients in training mode, eval keeps autograd on, no_grad does not.")
    values: Values = Field(description="What the input holds.")


class Census(Part):
    """How many values of a tensor are finite; a row is one token's values, or one tensor among the gradients."""

    _record = measurement.Census
    name: str = Field(description="What was counted: output, other outputs, gradients, or a branch.")
    num_values: int = Field(description="Values in all.")
    num_nan: int = Field(description="Values that are NaN.")
    num_inf: int = Field(description="Values that are infinite.")
    largest: Number = Field(description="Largest absolute value of the finite ones.")
    num_rows: int = Field(description="Rows in all.")
    num_bad_rows: int = Field(description="Rows with a value that is not finite.")
    first_bad: str = Field(description="The first row that is not finite, in words.")


class Trouble(Part):
    """What the subject did instead of returning a tensor."""

    _record = measurement.Trouble
    kind: TroubleKind
    message: str = Field(description="What it said, in a sentence.")
    phase: str = Field(description="When: build, forward or backward.")
    place: Place
    traceback: str = Field(description="Python's traceback, if there is one.")


class Measurement(Part):
    """What one run of the subject at one point gave."""

    _record = measurement.Measurement
    point: Point
    censuses: Listed[Census] = Field(description="One for each tensor that was counted.")
    seconds: Maybe[Number] = Field(description="Time of forward and backward.")
    peak_bytes: Maybe[int] = Field(description="Most memory during both.")
    trouble: Maybe[Trouble] = Field(description="Why there is nothing to count, null where there is.")
    notes: Listed[str] = Field(description="What a reader should know of it.")


class Timed(Part):
    """What was timed at one length; each list holds one number for each repetition."""

    length: int = Field(description="Sequence length.")
    mode: str = optional("Mode of the pass whose memory, operations and waits were counted.")
    forward: Listed[Number] = optional("Seconds of a forward pass without gradients.")
    train: Listed[Number] = optional("Seconds of forward and backward.")
    decode: Listed[Number] = optional("Seconds of one decoded token.")
    dense_forward: Listed[Number] = optional("Seconds of dense attention's forward pass at the same width.")
    dense_train: Listed[Number] = optional("Seconds of dense attention's forward and backward at the same width.")
    peak_bytes: Maybe[int] = Field(description="Most memory, null where it was not measured.")
    operations: int = Field(description="Operations of torch in one pass.")
    waits: int = Field(description="Times that the host waits for the device in one pass.")
    forward_tokens_per_second: Number = optional("Median over the repetitions.")
    train_tokens_per_second: Number = optional("Median over the repetitions.")
    decode_tokens_per_second: Number = optional("Median over the repetitions.")
    slowdown: Number = optional("Time against that of dense attention, median over the repetitions.")
    spread: Number = Field(description="How far repetitions differ, relative to their median.")
    operations_per_token: Number
    waits_per_token: Number


class Exponent(Part):
    """y grows with the length to the power value; low and high bound it with 95 % confidence."""

    value: Number
    low: Number
    high: Number


class Throughput(Part):
    """What was timed: a row per length, the growth of each quantity, and who takes the time."""

    rows: Listed[Timed]
    exponents: Named[Maybe[Exponent]] = Field(description="By quantity; null where there are too few lengths.")
    shares: Named[Number] = Field(description="Share of the time of a pass, by branch or module.")


class Run(Part):
    """Facts of a training run."""

    folder: str = Field(description="The folder that it was read from.")
    device_name: str = Field(description="Device that it ran on, empty where it is not known.")
    series: Named[Listed[Maybe[Number]]] = Field(description="Along the steps, by name; null where not known.")
    silences: Listed[Listed[Number]] = Field(description="Times between heartbeats, as [from, seconds].")
    numbers: Named[Maybe[Number]] = Field(description="What policies set limits on, by name; null where not known.")
    watchdog_dumps: Listed[str] = Field(description="Files of the watchdog with the stacks of a hang.")
    checkpoints: Listed[str] = Field(description="Files of checkpoints that the run saved.")
