"""What the model commands share: the options of a deployment, and of its compilation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphkiln.cli.errors import UsageProblem
from graphkiln.cli.session import Session

if TYPE_CHECKING:
    from graphkiln.core.config.compilation import CompilationConfig
    from graphkiln.core.deployment import Deployment

DEPLOYMENT = "What is served"
TARGET = "Where it runs"
COMPILATION = "How it is compiled"

_HINT = "{command} --help lists the options, and the README what -cc takes"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


# Every option is spelled out: typer 0.27 takes a metavar for a name where the two are equal.
def options(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder with config.json and safetensors, org/name (Hub), preset:NAME or module:factory.",
            show_default=False,
        ),
    ],
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype", metavar="DTYPE", help="Of weights and activations.", rich_help_panel=DEPLOYMENT
        ),
    ] = "auto",
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            "--max-num-batched-tokens",
            metavar="N",
            help="Most tokens in one step.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = 2048,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            "--max-num-seqs",
            metavar="N",
            help="Most requests in one step; if unset 128, but no more than tokens.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            metavar="N",
            help="Longest request; the model's own limit if unset.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    block_size: Annotated[
        int,
        typer.Option(
            "--block-size", metavar="N", help="Tokens in one KV cache block.", rich_help_panel=DEPLOYMENT
        ),
    ] = 16,
    load_format: Annotated[
        str,
        typer.Option(
            "--load-format",
            metavar="FORMAT",
            help="auto, safetensors, or dummy: random weights.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "auto",
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="What to compile for; the device here if unset.",
            rich_help_panel=TARGET,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="cpu|cuda", help="Short form of --target.", rich_help_panel=TARGET),
    ] = None,
    optimization_level: Annotated[
        str | None,
        typer.Option(
            "--optimization-level",
            "-O",
            metavar="0..3",
            help="Sets defaults; also written -O2.",
            rich_help_panel=COMPILATION,
        ),
    ] = None,
    performance_mode: Annotated[
        str | None,
        typer.Option(
            "--performance-mode",
            metavar="MODE",
            help="balanced, interactivity or throughput: which sizes are captured.",
            rich_help_panel=COMPILATION,
        ),
    ] = None,
    enforce_eager: Annotated[
        bool,
        typer.Option(
            "--enforce-eager", help="Compile nothing and capture nothing.", rich_help_panel=COMPILATION
        ),
    ] = False,
    compilation_config: Annotated[
        str | None,
        typer.Option(
            "--compilation-config",
            "-cc",
            metavar="JSON",
            help="Single fields are written -cc.FIELD=VALUE.",
            rich_help_panel=COMPILATION,
        ),
    ] = None,
) -> None:
    """Holds the shared options as a signature; never called."""


@dataclass(frozen=True)
class Asked:
    """What was typed to `command` about the deployment and its compilation, not yet looked at."""

    command: str
    deployment: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def model(self) -> str:
        return str(self.deployment["model"])

    @property
    def target(self) -> str | None:
        target: str | None = self.deployment["target"]
        return target

    def need_none(self, where: str) -> None:
        """Refuses a MODEL and every option about it, each of which belongs elsewhere."""
        usual = {name: one.default for name, one in inspect.signature(options).parameters.items()}
        given = [name for name, value in self.deployment.items() if value != (usual | {"model": ""})[name]]
        names = ["MODEL" if name == "model" else f"--{name.replace('_', '-')}" for name in given]
        names += ["what -O and -cc say"] if self.config else []
        if names:
            raise UsageProblem(f"with --engine, {names[0]} {where}", "put it there")

    def build(self) -> tuple[Deployment, CompilationConfig]:
        """Returns the two checked objects; a value that they refuse is bad usage.

        What cannot be compiled at all is refused here too, in a moment: what comes next imports torch.
        """
        from graphkiln.core.config.compilation import CompilationConfig
        from graphkiln.core.config.settle import settle
        from graphkiln.core.deployment import Deployment
        from graphkiln.core.models.source import identify
        from graphkiln.core.target.description import require_target

        try:
            deployment = Deployment(**self.deployment)
            config = CompilationConfig.from_user(dict(self.config))
            if deployment.target is not None:
                require_target(deployment.target)
            source = identify(deployment)
            settle(deployment, config, source.config, source.dtype)
        except ValueError as error:
            raise UsageProblem(str(error), _HINT.format(command=self.command)) from error
        return deployment, config


def with_deployment(command: Callable[..., int], *, model_needed: bool = True) -> Callable[..., int]:
    """Returns `command(session, asked, **own)` as the parser wants it: the shared options, then its own.

    With `model_needed` False the command itself says what to do without a MODEL, which is "" then.
    """
    shared = dict(inspect.signature(options, eval_str=True).parameters)
    if not model_needed:
        shared["model"] = shared["model"].replace(default="")
    own = list(inspect.signature(command, eval_str=True).parameters.values())[2:]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def parsed(**values: Any) -> int:
        typed: typer.Context = values.pop("context")
        session: Session = typed.obj
        given = {name: values.pop(name) for name in shared}
        config = config_of(
            given.pop("compilation_config"),
            optimization_level=given.pop("optimization_level"),
            performance_mode=given.pop("performance_mode"),
            enforce_eager=given.pop("enforce_eager") or None,
        )
        return command(session, Asked(typed.command_path, given, config), **values)

    parsed.__signature__ = inspect.Signature([context, *shared.values(), *own])  # type: ignore[attr-defined]
    parsed.__doc__, parsed.__name__ = command.__doc__, command.__name__
    return parsed


def config_of(compilation_config: str | None, **single: object) -> dict[str, Any]:
    """Returns the fields to hand to CompilationConfig; options of their own win over the JSON."""
    config: dict[str, Any] = json.loads(compilation_config) if compilation_config else {}
    return config | {name: value for name, value in single.items() if value is not None}
