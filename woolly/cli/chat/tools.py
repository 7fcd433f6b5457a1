"""Tools of a chat: shows tool calls, asks the user, and returns the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.chat import ToolCall
from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import print_status, visible
from woolly.errors import ToolError

if TYPE_CHECKING:
    from woolly.mcp import OfferedTool, Toolbox
    from woolly.mcp.approval import Reply

_SHOWN = 400  # shown characters of results, and of arguments that run without asking
_REFUSED = "The user refused this call. Do not repeat it; continue without it."
_STOPPED = "The user stopped this call."
_REPLIES: dict[str, Reply] = {"y": "once", "yes": "once", "once": "once", "a": "always", "always": "always"}
_REPLIES |= {"never": "never", "v": "never"}


class Tools:
    """Tools of MCP servers, with the approval policy."""

    def __init__(self, toolbox: Toolbox, policy: str, question: Callable[[str], str] | None) -> None:
        """`question` asks the user; None if there is no user. `policy` is one of `woolly.mcp.POLICIES`."""
        from woolly.mcp import Approvals

        def ask(_: OfferedTool, __: str) -> Reply:
            reply = "" if question is None else question("  Call it? [y/N/always/never] ")
            return _REPLIES.get(reply.lower(), "no")

        self._toolbox = toolbox
        self._approvals = Approvals(policy, ask)

    @property
    def offered(self) -> list[dict[str, Any]]:
        """Tools in the format of `LLM.chat`."""
        return [tool.tool.to_json() for tool in self._toolbox.tools]

    @property
    def shown(self) -> str:
        """Return one line per tool: approval, name and description."""
        if not self._toolbox.tools:
            return "no server offers a tool"
        lines = []
        for tool in self._toolbox.tools:
            about = (tool.tool.description or "").strip().splitlines() or [""]
            lines.append(f"{self._approvals.shown(tool):<7} {tool.name}  {about[0]}".rstrip())
        return visible("\n".join(lines))

    def run(self, calls: Sequence[ToolCall]) -> tuple[list[dict[str, Any]], bool]:
        """Run tool calls. Return the messages with their results, and False if Ctrl-C ended them."""
        results: list[dict[str, Any]] = []
        goes_on = True
        for call in calls:
            try:
                text = self._run_one(call) if goes_on else _STOPPED
            except KeyboardInterrupt:
                print_status("(stopped)")
                text, goes_on = _STOPPED, False
            results.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        return results, goes_on

    def close(self) -> None:
        """Stop the servers."""
        self._toolbox.close()

    def _run_one(self, call: ToolCall) -> str:
        try:
            tool = self._toolbox.find(call.name)
        except ToolError as error:
            _print_call(call)
            print_status(f"woolly: {error}")
            return f"Error: {error}"
        _print_call(call, is_whole=self._approvals.decided(tool) is None)
        try:
            if not self._approvals.allow(tool, call.arguments):
                print_status("  (refused)", dim=True)
                return _REFUSED
            result = self._toolbox.call(call)
        except ToolError as error:
            print_status(f"woolly: {error}")
            return f"Error: {error}"
        print_status(f"  {'failed: ' if result.is_error else ''}{_short(result.text)}", dim=True)
        return f"Error: {result.text}" if result.is_error else result.text


def open_tools(path: Path, policy: str, question: Callable[[str], str] | None) -> Tools:
    """Start the servers of a file. On a terminal, a server that fails is reported and the others are used."""
    from woolly.mcp import Toolbox, read_config

    config = read_config(path)
    if config.ignored:
        print_status(f"woolly: {path} has {', '.join(config.ignored)}, without effect here")
    toolbox = Toolbox(config.servers)
    try:
        errors = toolbox.open()
        if errors and question is None:
            raise errors[0]
        for error in errors:
            print_status(f"woolly: {error}")
        if question is not None:
            n_servers = len(config.servers) - len(errors)
            print_status(f"{plural(len(toolbox.tools), 'tool')} of {plural(n_servers, 'MCP server')}; /tools", dim=True)
        return Tools(toolbox, policy, question)
    except BaseException:
        toolbox.close()
        raise


def call_message(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return the assistant's message with its tool calls."""
    functions = ({"name": call.name, "arguments": call.arguments} for call in calls)
    listed = [
        {"id": call.id, "type": "function", "function": function}
        for call, function in zip(calls, functions, strict=True)
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": listed} if listed else {})}


def _print_call(call: ToolCall, *, is_whole: bool = False) -> None:
    print_status(f"→ {visible(call.name)} {_whole(call.arguments) if is_whole else _short(call.arguments)}")


def _whole(arguments: str) -> str:
    """Return the complete arguments, because the user approves what the screen shows.

    In JSON, line breaks can only occur between tokens. They become spaces, because blank lines could scroll parts away.
    """
    return " ".join(line.strip() for line in visible(arguments).split("\n") if line.strip())


def _short(text: str) -> str:
    line = " ".join(visible(text).split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}... ({len(text):,} characters)"
