"""The keys of an nsa-doctor.toml: each is the option of that name, for command lines that name no subject."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nsa.strict import Name, Strict

Seconds = Annotated[float, Field(gt=0)]


class ProjectSettings(Strict):
    """What is examined, how, and by which policy it is judged."""

    subject: Name | None = Field(None, description="what is examined: package.module:factory")
    config: Name | None = Field(None, description="a configuration of nsa, in place of a subject")
    input: Literal["embeddings", "tokens"] | None = Field(None, description="what the subject takes")
    width: int | None = Field(None, gt=0, description="width of embeddings, or size of the vocabulary")
    spec: Name | None = Field(None, description="what the subject is meant to be")
    train: Name | None = Field(None, description="a training step of the subject's, or its loop")
    size: Literal["small", "real"] | None = Field(None, description="how large a model of transformers is made")
    like: Name | None = Field(None, description="how a function is called")
    reference: Name | None = Field(None, description="a function that is right")
    inputs: Name | None = Field(None, description="a safetensors file with q, k and v")
    path: tuple[Name, ...] = Field((".",), max_length=100, description="folders that hold the subject's package")
    policy: Name | None = Field(None, description="what go-no-go requires")
    profile: Literal["smoke", "quick", "full"] | None = Field(None, description="how long run takes")
    select: Name | None = Field(None, description="only these codes or families")
    ignore: Name | None = Field(None, description="not these codes or families")
    device: Literal["cpu", "cuda"] | None = Field(None, description="where it is examined")
    dtype: Name | None = Field(None, description="the dtype it is examined in")
    seed: int | None = Field(None, ge=0, description="seed of weights and inputs")
    jobs: int | None = Field(None, gt=0, description="processes to work in")
    timeout: Seconds | None = Field(None, description="seconds one call may take")
    compile_timeout: Seconds | None = Field(None, description="seconds that compiling in one call may take")

    def options(self) -> dict[str, Any]:
        """What was said, by the parameters of commands."""
        words = {name: value for name, value in self if value is not None and name != "path"}
        return {"input_kind" if name == "input" else name: value for name, value in words.items()}
