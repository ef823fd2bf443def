"""The options that several commands have, each with its help, said once."""

from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cli import completion
from nsa_doctor.core.like import CONVENTIONS
from nsa_doctor.render.formats import FORMATS

Lengths = Annotated[str, typer.Option("--seq", help="Lengths, separated by commas.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.", autocompletion=completion.DEVICES)]
Dtype = Annotated[
    str | None,
    typer.Option(help="Examine it in this dtype in place of its own.", autocompletion=completion.OF_DTYPES),
]
Config = Annotated[str | None, typer.Option(help="Configuration file or built-in name for nsa.")]
Subject = Annotated[
    str | None,
    typer.Option(
        help="package.module:factory in place of nsa, fn:package.module:function, or a model for transformers: "
        "hf:MODEL_TYPE, hf:FOLDER with a config.json, hf:package.module:Class."
    ),
]
Input = Annotated[
    str | None,
    typer.Option("--input", help="embeddings or tokens; found out when not given.", autocompletion=completion.INPUTS),
]
Width = Annotated[int | None, typer.Option(help="Width of embeddings, or size of the vocabulary.")]
Spec = Annotated[
    str | None,
    typer.Option(
        help="What the subject is meant to be: bidirectional, stochastic; of a function causal,window=512,gqa=4 …"
    ),
]
Train = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:STEP",
        help="A training step of the subject's to examine, step(module, optimizer, batch), which returns its loss; or "
        "its whole loop, begin(module), which returns an nsa_doctor.TrainingLoop.",
    ),
]
Size = Annotated[
    str | None,
    typer.Option(help="small or real: how large a --subject hf:… is made; small where it is not said."),
]
Like = Annotated[
    str | None,
    typer.Option(
        help=f"How a --subject fn:package.module:function is called: {', '.join(CONVENTIONS)}.",
        autocompletion=completion.OF_CONVENTIONS,
    ),
]
Reference = Annotated[
    str | None, typer.Option(help="A function fn: called alike that is right: package.module:function.")
]
Inputs = Annotated[str | None, typer.Option(help="A safetensors file with q, k and v as a function fn: takes them.")]
Profile = Annotated[
    str,
    typer.Option(help="smoke (10 s), quick (a minute) or full (ten minutes).", autocompletion=completion.OF_PROFILES),
]
Seed = Annotated[int, typer.Option(help="Seed of weights and inputs.")]
Select = Annotated[
    str | None,
    typer.Option(help="Only these codes or families: FWD,NAN.", autocompletion=completion.listed_codes),
]
Ignore = Annotated[
    str | None, typer.Option(help="Not these codes or families.", autocompletion=completion.listed_codes)
]
Jobs = Annotated[int | None, typer.Option(help="Processes to work in; as many as cores, at most 4.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first check that fails.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help=f"{', '.join(FORMATS)}; else what the name of --output says.",
        autocompletion=completion.OF_FORMATS,
    ),
]
Output = Annotated[Path | None, typer.Option(help="Write the report to this file too.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
QuietReport = Annotated[bool, typer.Option("--quiet", help="No progress, and with --output no report here.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show tracebacks.")]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "--gate",
        help="ci, smoke, production, foreign, function or a file; else as the subject is: production for none.",
        autocompletion=completion.policies,
    ),
]
RunFolder = Annotated[Path | None, typer.Option(help="Folder of a training run, for the policy's limits.")]
Checkpoint = Annotated[str | None, typer.Option(help="A checkpoint: is it sound, and are its gates?")]
Data = Annotated[str | None, typer.Option(help="A configuration whose batches are looked at.")]
Baseline = Annotated[Path | None, typer.Option(help="An earlier report.json to compare with.")]
Because = Annotated[str | None, typer.Option(help="Why findings of the --baseline may stay; else they may not.")]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="Compute steps of the run again from its checkpoints, and compare.")
]
Prove = Annotated[
    int | None, typer.Option(metavar="N", help="Change N lines of the subject, one at a time: how many are noticed?")
]
ProveSeed = Annotated[int, typer.Option(help="Which changes --prove draws.")]
CompileSeconds = Annotated[
    float, typer.Option("--compile-timeout", help="Seconds that compiling in one call may take beside that.")
]
CallSeconds = Annotated[float, typer.Option("--timeout", help="Seconds one call of the subject may take.")]
Bundle = Annotated[Path, typer.Option(help="Folder for report.json, .html, .md, .sarif and junit.xml.")]
NoExample = Annotated[
    bool, typer.Option("--no-example", help="Exit 2 where no subject is named, and examine no built-in one.")
]
