"""`woolly chat`: conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.cli.chat.repl import ReplOptions, run_repl
from woolly.cli.commands.pull import pulled
from woolly.cli.first_run.model_offer import hint
from woolly.cli.first_run.state_file import default_model
from woolly.cli.parse.command import command
from woolly.cli.parse.options import (
    ANSWER,
    ENGINE,
    MAX_TOKENS,
    NAMED,
    SYSTEM,
    adapter_scales,
    complete_fetched,
    hub_file_option,
    hub_model,
    hub_option,
    max_answer_tokens,
    model_argument,
    one_model,
    read_text,
    structure,
)
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.sampling import SAMPLING, sampling_params
from woolly.cli.parse.template_options import TEMPLATE, engine_of
from woolly.errors import RequestError
from woolly.sampling import SamplingParams
from woolly.store import DEFAULT_MODEL

_TURNS = "Conversation"  # title in --help

if TYPE_CHECKING:
    from woolly.llm import LLM


@command(
    model_argument(shown=DEFAULT_MODEL, complete=complete_fetched),
    NAMED,
    Option("--prompt -p", "The first message.", section=ANSWER),
    Option("--file -f", "Text file as the first message, or before it.", metavar="FILE", section=ANSWER),
    SYSTEM,
    MAX_TOKENS,
    Option("--stop -r", "End an answer before this text; may be repeated.", list, section=ANSWER),
    Option("--json-schema", "JSON schema of the answers: a file, or JSON text.", section=ANSWER),
    Option("--grammar", "GBNF grammar of the answers: a file, or the grammar itself.", section=ANSWER),
    TEMPLATE,
    ENGINE,
    hub_option(),
    hub_file_option(),
    Option("--plain", "Show answers as plain text instead of rendered Markdown.", bool, default=False),
    Option(
        "--history/--no-history",
        "Save the input history for later chats.",
        bool,
        default=True,
        section=_TURNS,
    ),
    Option(
        "--forget",
        "If the context is full, forget the oldest turns without asking.",
        bool,
        default=False,
        section=_TURNS,
    ),
    Option(
        "--compact",
        "If the context is nearly full, replace older turns by a summary.",
        bool,
        default=False,
        section=_TURNS,
    ),
    Option("--mcp", "File of MCP servers whose tools the model may call, with your approval.", Path, metavar="FILE"),
    Option(
        "--mcp-approve",
        "Tool calls that run without asking: ask (none), read-only (tools marked read-only), all.",
        default="ask",
        section=_TURNS,
    ),
    SAMPLING,
    common="named system max_tokens ctx temperature seed mcp plain",
)
def chat(
    model: str | None,
    named: str | None,
    hf_repo: str | None,
    hf_file: str | None,
    prompt: str | None,
    file: str | None,
    system: str | None,
    max_tokens: int | None,
    stop: tuple[str, ...],
    json_schema: str | None,
    grammar: str | None,
    template: dict[str, Any],
    engine: dict[str, Any],
    plain: bool,
    history: bool,
    forget: bool,
    compact: bool,
    mcp: Path | None,
    mcp_approve: str,
    sampling: dict[str, Any],
) -> None:
    """Chat with a model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat.

    If standard input is not a terminal, each of its lines is answered in plain text.
    """

    from woolly.mcp import POLICIES

    scales = adapter_scales(engine)
    engine = {**engine, **engine_of(template)}

    def params_of(llm: LLM | None) -> SamplingParams:
        limits = {"max_tokens": max_answer_tokens(max_tokens), "stop": stop, **scales}
        return sampling_params(sampling, llm, **limits, **structure(json_schema, grammar))

    params_of(None)  # reports usage errors before fetching a model
    if mcp_approve not in POLICIES:
        raise RequestError(
            f"mcp_approve is {mcp_approve!r}; expected one of {', '.join(POLICIES)}", field="mcp_approve"
        )
    given = None if file is None else read_text("--file", Path(file)).removesuffix("\n")
    name = one_model("chat", model, hub_model(named, hf_repo, hf_file), default_model())
    if hf_repo is not None:
        pulled(name)
    elif name == DEFAULT_MODEL and model is None and named is None:
        hint()
    run_repl(
        name,
        params_of,
        system,
        engine,
        ReplOptions(plain, history, forget, compact, mcp, mcp_approve),
        template=template,
        first="\n\n".join(text for text in (given, prompt) if text is not None) or None,
    )
