"""What a report holds of the gates in a checkpoint."""

from typing import Literal

from pydantic import Field

from nsa_doctor.render.report_format.part import Listed, Maybe, Number, Part


class Figures(Part):
    """The finite values of one tensor in numbers."""

    shape: Listed[int]
    dtype: str
    mean: Number
    std: Number
    norm: Number
    zeros: Number = Field(description="The share that is exactly zero.")
    num_values: int = Field(description="Values in all.")
    num_bad: int = Field(description="Values that are not finite.")


class Branch(Part):
    """One branch's weight over all probe inputs."""

    name: str
    mean: Number
    least: Number
    most: Number


class Probe(Part):
    """What a gate makes of standard normal inputs."""

    num_inputs: int
    activation: Literal["softmax", "sigmoid"]
    branches: Listed[Branch]
    entropy: Number = Field(description="1 where branches share evenly, 0 where one takes all.")
    flat: Number = Field(description="The share of weights that cannot learn any more.")
    spread: Number = Field(description="How far a weight goes between inputs.")
    leader: int = Field(description="The branch that takes nearly all most often.")
    led: Number = Field(description="The share of inputs on which it does.")
    is_stuck: bool = Field(description="Whether one weight by itself is flat on nearly all inputs.")
    dead: Listed[int] = Field(description="The branches that get nothing.")


class Drift(Part):
    """How far a gate went since an earlier checkpoint."""

    since: str = Field(description="The earlier checkpoint.")
    relative: Number = Field(description="Norm of the difference over that of the earlier values.")
    others: int = Field(description="Tensors beside it that changed.")


class Gate(Part):
    """One gate of a checkpoint."""

    checkpoint: str = Field(description="The file.")
    verdict: str = Field(description="One word or two: the gravest illness, healthy, or not probed.")
    illnesses: Listed[str] = Field(description="What is wrong with it, the gravest first.")
    layer: str = Field(description="Its module without what wraps the whole model.")
    module: str = Field(description="Its module, as the file names it.")
    form: str = Field(description="What it is taken for, in words.")
    weight: Maybe[Figures] = Field(description="Of its last layer; null for learned numbers alone.")
    bias: Maybe[Figures]
    hidden_weight: Maybe[Figures] = Field(description="Of its hidden layer, null where there is none.")
    hidden_bias: Maybe[Figures]
    probe: Maybe[Probe]
    unprobed: str = Field(description="Why it was not tried out.")
    drift: Maybe[Drift] = Field(description="Null where there is no earlier checkpoint.")
