"""The commands about text: generate and perplexity."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.cli_common import BuildOpt, GpuOpt, JsonOpt, emit, show
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.sampler import Sampling
    from engine.tokenizer import Tokenizer

TEXT_TOKENS, ID_TOKENS = 128, 32
"""Tokens produced by default, after a text and after token ids."""
ModelOpt = Annotated[str | None, typer.Option("--model", "-m", help="The same as MODEL, as an option.")]
AnyModel = Annotated[
    str | None, typer.Argument(help="A GGUF file; for --tokens a built-in model will do.", metavar="[MODEL]")
]
FileModel = Annotated[str | None, typer.Argument(help="A GGUF file.", metavar="[MODEL]")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (generate, perplexity):
        app.command()(command)


def generate(
    model: AnyModel = None,
    model_option: ModelOpt = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Text to go on from.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message, put into the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message of --chat.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Prompt as token ids with commas between; prints ids.")] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, help="Most tokens to produce: by default 128 after text, 32 after --tokens."
        ),
    ] = None,
    temp: Annotated[float, typer.Option(help="Temperature; 0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest, 0 for all. Default: 40.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest of this sum. Default: 0.95.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from those at least this part of the likeliest. Default: 0.05.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws, and of a built-in model's weights.")] = None,
    build: BuildOpt = "reference",
    gpu: GpuOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Generate text from a prompt, streamed, with tok/s at the end; or greedy token ids after --tokens.

    Example: engine generate -m model.gguf --chat -p "Why is the sky blue?" -n 64
    """
    spec = _one_model(model, model_option)
    sampling = _sampling(temp, top_k, top_p, min_p, seed)
    if tokens is not None:
        _refuse_text_options(prompt=prompt, chat=chat, system=system, stop=stop, temp=temp or None)
        _after_ids(spec, tokens, count or ID_TOKENS, build, seed, gpu, as_json)
        return
    if prompt is None:
        raise EngineError("generate needs a prompt: text with --prompt, or token ids with --tokens")
    if system is not None and not chat:
        raise EngineError("--system is a message of a chat; give --chat too")
    _after_text(spec, prompt, system, chat, count, sampling, tuple(stop or ()), build, gpu, as_json)


def _after_ids(spec: str, tokens: str, count: int, build: str, seed: int | None, gpu: int, as_json: bool) -> None:
    from engine.config import DEFAULT_SEED, resolve
    from engine.dispatch import load
    from engine.generate import SCHEMA
    from engine.session import open_session
    from engine.verify import greedy

    try:
        prompt = [int(part) for part in tokens.split(",")]
    except ValueError:
        raise EngineError(f"--tokens {tokens!r} is not a list of whole numbers with commas between") from None
    config = resolve(spec, DEFAULT_SEED if seed is None else seed)
    with open_session(config, load(build), len(prompt) + count + 1, gpu) as session:
        produced = greedy(session, prompt, count)
    document = {"schema": SCHEMA, "prompt": prompt, "tokens": produced}
    emit(document, as_json, [",".join(str(token) for token in produced)])


def _after_text(
    spec: str,
    prompt: str,
    system: str | None,
    chat: bool,
    count: int | None,
    sampling: Sampling,
    stops: tuple[str, ...],
    build: str,
    gpu: int,
    as_json: bool,
) -> None:
    from engine.chat import messages, render
    from engine.dispatch import load
    from engine.generate import SCHEMA, Request, require_context
    from engine.generate import generate as run
    from engine.session import open_session
    from engine.stops import StopFilter

    config, tokenizer = _text_model(spec)
    text = render(tokenizer.vocabulary, messages(prompt, system)) if chat else prompt
    ids = tokenizer.prompt(text)
    request = Request(ids, count or max(1, min(TEXT_TOKENS, config.context - len(ids))), sampling, stops)
    require_context(request, config.context)
    StopFilter(stops)  # refuses a wrong stop string before the weights are loaded
    with open_session(config, load(build), request.capacity, gpu) as session:
        found = run(session, tokenizer, request, (lambda text: None) if as_json else show)
        device = session.device().name
    document = {"schema": SCHEMA, "model": config.model.shape.name, "device": device, "build": build}
    if as_json:
        emit(document | {"prompt": list(request.prompt)} | found.to_json(), True, [])
        return
    show("\n")
    print(f"{found.describe()} ({config.model.shape.name}, build {build}, {device})", file=sys.stderr)


def perplexity(
    model: FileModel = None,
    model_option: ModelOpt = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Text file in UTF-8.")] = None,
    context: Annotated[int, typer.Option("--context", "-c", help="Tokens a window.")] = 512,
    build: BuildOpt = "reference",
    gpu: GpuOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Perplexity of a text over windows of -c tokens, the second half of each scored, as llama.cpp's tool does.

    Example: engine perplexity -m model.gguf -f text.txt -c 128
    """
    from engine import perplexity as scores
    from engine.dispatch import load
    from engine.session import open_session

    spec = _one_model(model, model_option)
    if file is None:
        raise EngineError("perplexity needs a text: give its file with --file")
    config, tokenizer = _text_model(spec)
    tokens = tokenizer.prompt(_read(file), specials=False)
    bos = tokenizer.vocabulary.bos if tokenizer.vocabulary.add_bos else None
    cut = scores.windows(tokens, context, bos)
    if context > config.context:
        raise EngineError(f"--context {context} exceeds the model's context of {config.context}")
    with open_session(config, load(build), context + 1, gpu) as session, _progress(len(cut)) as done:
        found = scores.measure(session, tokens, context, bos, done)
        device = session.device().name
    document = {"schema": scores.SCHEMA, "model": config.model.shape.name, "device": device, "build": build}
    lines = [
        f"perplexity {found.value:.4f} ± {found.error:.4f} ({config.model.shape.name}, build {build}, {device})",
        f"{len(found.losses)} of {found.tokens} tokens scored in {found.windows} windows of {context}, "
        f"{len(found.losses) / found.seconds:.1f} tok/s",
    ]
    emit(document | {"file": str(file)} | found.to_json(), as_json, lines)


def _progress(total: int) -> Any:
    from engine.progress import counted

    return counted(total, "windows")


def _one_model(argument: str | None, option: str | None) -> str:
    given = [spec for spec in (argument, option) if spec is not None]
    if len(given) != 1:
        problem = "no model was given" if not given else f"two models were given, {argument} and {option}"
        raise EngineError(f"{problem}; name one, as MODEL or with --model")
    return given[0]


def _sampling(temp: float, top_k: int | None, top_p: float | None, min_p: float | None, seed: int | None) -> Sampling:
    """The options as a choice of tokens; truncation without a temperature would do nothing, and is refused."""
    from engine.sampler import Sampling

    given = {"--top-k": top_k, "--top-p": top_p, "--min-p": min_p}
    if temp == 0 and (idle := [name for name, value in given.items() if value is not None]):
        raise EngineError(f"{idle[0]} has no effect at temperature 0; give --temp too")
    return Sampling(
        temperature=temp,
        top_k=40 if top_k is None else top_k,
        top_p=0.95 if top_p is None else top_p,
        min_p=0.05 if min_p is None else min_p,
        seed=seed,
    )


def _refuse_text_options(**given: Any) -> None:
    if wrong := [name for name, value in given.items() if value]:
        raise EngineError(f"--{wrong[0]} is about text and --tokens gives ids; leave one of them out")


def _text_model(spec: str) -> tuple[ModelConfig, Tokenizer]:
    """A model file and its tokenizer; raises EngineError for a built-in model."""
    from engine.config import resolve
    from engine.tokenizer import Tokenizer
    from engine.vocabulary import read_vocabulary

    config = resolve(spec)
    if config.path is None:
        raise EngineError(f"built-in model {spec} has random weights and no tokenizer; name a GGUF file")
    return config, Tokenizer(read_vocabulary(config.path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(f"text file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EngineError(
            f"text file {path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from error
