"""Real agents against the server, whose model is scripted: one turn of text and one that calls a tool, each.

`./scripts/clients` installs the agents and runs this. The server runs in this process over a tiny model that answers
with a text, or with a call of the agent's shell and, when the result is there, with a text.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.conftest import TEMPLATE, serve

HELLO = "The sheep are well."
COMMAND, RESULT = "echo $((6 * 7 * 1000))", "42000"
DONE = "The shell wrote its number."
ASK = {"text": "How are the sheep?", "tool": f"Run `{COMMAND}` in the shell and say what it writes."}

# The shell of each agent, and the arguments that it needs.
SHELLS = {
    "Bash": {"command": COMMAND, "description": "Computes."},
    "bash": {"command": COMMAND, "description": "Computes."},
    "exec_command": {"cmd": COMMAND},
    "run_shell_command": {"command": COMMAND, "is_background": False, "description": "Computes."},
    "run_commands": {"commands": [COMMAND]},
}


@dataclass(frozen=True)
class Agent:
    """Command line, environment and files that point an agent at the server."""

    package: str
    dialect: str
    command: tuple[str, ...]  # {ask} and {home} are filled in
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # below its home


CODEX = """\
model = "tiny"
model_provider = "woolly"
[model_providers.woolly]
name = "Woolly"
base_url = "{url}/v1"
wire_api = "responses"
"""
OPENCODE = {
    "provider": {
        "woolly": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1"},
            "models": {"tiny": {}},
        }
    },
    "model": "woolly/tiny",
    "permission": {"bash": "allow"},
}
CLINE = {
    "version": 1,
    "lastUsedProvider": "ollama",
    "providers": {
        "ollama": {
            "tokenSource": "manual",
            "updatedAt": "2026-01-01T00:00:00Z",
            "settings": {"provider": "ollama", "model": "tiny", "baseUrl": "{url}/v1"},
        }
    },
}
CONTINUE = """\
name: Woolly
version: 1.0.0
schema: v1
models:
  - name: tiny
    provider: openai
    model: tiny
    apiBase: {url}/v1
    apiKey: any
    capabilities: [tool_use]
"""

AGENTS = {
    "Claude Code": Agent(
        "@anthropic-ai/claude-code",
        "Anthropic",
        ("claude", "-p", "{ask}", "--output-format", "json", "--dangerously-skip-permissions"),
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "any",
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "Codex": Agent(
        "@openai/codex",
        "Responses",
        (
            "codex",
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "{ask}",
        ),
        files={".codex/config.toml": CODEX},
    ),
    "opencode": Agent(
        "opencode-ai",
        "OpenAI",
        ("opencode", "run", "{ask}"),
        {"OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE), "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    "Qwen Code": Agent(
        "@qwen-code/qwen-code",
        "OpenAI",
        ("qwen", "--auth-type", "openai", "--yolo", "-p", "{ask}"),
        {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": "tiny"},
    ),
    "Copilot CLI": Agent(
        "@github/copilot",
        "Responses",
        ("copilot", "-p", "{ask}", "--allow-all-tools"),
        {
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "COPILOT_MODEL": "tiny",
            "COPILOT_OFFLINE": "true",
        },
    ),
    "Cline": Agent(
        "cline",
        "Ollama",
        ("cline", "{ask}", "--json"),
        files={".cline/data/settings/providers.json": json.dumps(CLINE)},
    ),
    "Continue": Agent(
        "@continuedev/cli",
        "OpenAI",
        ("cn", "--config", "{home}/config.yaml", "--auto", "-p", "{ask}"),
        files={"config.yaml": CONTINUE},
    ),
}


class Answers(logging.Handler):
    """Collects the lines of the log about answers: how many tokens a prompt had, and how many were cached."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen: list[tuple[int, int]] = []
        self.ignored: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "answered":
            self.seen.append((record.prompt_tokens, record.cached_tokens))
        self.ignored |= set((getattr(record, "ignored", None) or "").split(", ")) - {""}


def script(layout, kind: str) -> str:
    """Answer of the model: the text, or first a shell call if the agent offers one."""
    tools = {tool.name for tool in layout.choice.tools}
    shell = next((name for name in SHELLS if name in tools), None)
    if kind == "text" or shell is None:
        return HELLO
    if RESULT in layout.text:
        return DONE
    return f"<tool_call>\n{json.dumps({'name': shell, 'arguments': SHELLS[shell]})}\n</tool_call>"


def run(agent: Agent, kind: str, url: str, seconds: float) -> tuple[bool, str]:
    """Run an agent; returns whether its output has the answer, and its last lines."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        put: Callable[[str], str] = lambda text: (  # noqa: E731
            text.replace("{url}", url).replace("{home}", str(home)).replace("{ask}", ASK[kind])
        )
        for name, text in agent.files.items():
            file = home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(put(text))
        (home / "work").mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        env = {**kept, "HOME": str(home), "NO_COLOR": "1", **{name: put(value) for name, value in agent.env.items()}}
        command = [put(word) for word in agent.command]
        try:
            done = subprocess.run(
                command,
                cwd=home / "work",
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as late:
            return False, f"no end after {seconds:g} s: {(late.stdout or b'')[-800:]!r} {(late.stderr or b'')[-800:]!r}"
        finally:
            _end_daemons(home)
        said = done.stdout + done.stderr
        return (HELLO if kind == "text" else DONE) in said, said[-2000:]


def _end_daemons(home: Path) -> None:
    """Ends what an agent left running, which its command line shows: Cline starts a daemon below its home."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(home) in (process / "cmdline").read_bytes().decode(errors="replace"):
                os.kill(int(process.name), signal.SIGTERM)


def main() -> int:
    """Runs the agents that are named, or all that are installed, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(AGENTS)}; all by default")
    parser.add_argument("--packages", action="store_true", help="print the npm packages of the agents and end")
    parser.add_argument("--seconds", type=float, default=300, help="for a turn")
    parser.add_argument("--verbose", action="store_true", help="print what each agent wrote")
    options = parser.parse_args()
    chosen = {name: AGENTS[name] for name in options.names or AGENTS}
    if options.packages:
        print(*(agent.package for agent in chosen.values()))
        return 0
    answers, kind = Answers(), "text"
    log = logging.getLogger("woolly.serving")
    log.setLevel(logging.INFO)
    log.addHandler(answers)
    failed = 0
    print("| agent | dialect | text | tool | prompt tokens | cached at turn two | ignored |")
    print("|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), TEMPLATE, ctx=1 << 17) as server:
        server.script = lambda layout: script(layout, kind)
        for name, agent in chosen.items():
            if shutil.which(agent.command[0]) is None:
                print(f"| {name} | {agent.dialect} | not installed | | | | |")
                continue
            cells = []
            answers.ignored.clear()
            for kind in ASK:
                answers.seen.clear()
                began = time.monotonic()
                is_right, said = run(agent, kind, server.url, options.seconds)
                failed += not is_right
                cells.append(f"{time.monotonic() - began:.0f} s" if is_right else "failed")
                if options.verbose or not is_right:
                    print(f"--- {name}, {kind}\n{said}\n---", file=sys.stderr)
            longest = max((n for n, _ in answers.seen), default=0)
            cached = min((hit / n for n, hit in answers.seen[-1:]), default=0.0)
            ignored = ", ".join(sorted(answers.ignored))
            row = (name, agent.dialect, *cells, str(longest), f"{cached:.0%}", ignored)
            print("|", " | ".join(row), "|", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
