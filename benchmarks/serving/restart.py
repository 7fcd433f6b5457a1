"""Cache hits of each agent's first turn after a restart: share of its tokens, and seconds.

    python -m benchmarks.serving.restart MODEL.gguf FOLDER [--ctx 32768]

FOLDER holds what agents sent, as `NAME-1.json` and so on: method, path, headers, body. The first request of each agent
that is a turn (others, such as those for a title, have under half of its length) is asked twice of a server with pages
on disk; the server ends; another one over the same pages is asked the same, and then with another question: an agent
that sends text behind the question shares less of that. A fresh folder of pages is used, which is removed.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.serving.load import serving

ANOTHER = "What does the largest file of this folder do?"
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def first_turns(folder: Path) -> dict[str, dict[str, Any]]:
    """The first turn of each agent, by its name."""
    sent: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-*.json")):
        request = json.loads(path.read_text())
        if request["method"] == "POST":
            sent.setdefault(path.stem.rpartition("-")[0], []).append(request)
    found = {}
    for name, requests in sent.items():
        most = max(len(json.dumps(one["body"])) for one in requests)
        found[name] = next(one for one in requests if len(json.dumps(one["body"])) > most / 2)
    return found


def shortened(turn: dict[str, Any]) -> dict[str, Any]:
    """The body with an answer of one token."""
    body = {name: value for name, value in turn["body"].items() if name not in _LIMITS}
    if turn["path"].startswith("/api/"):
        return {**body, "options": {**(body.get("options") or {}), "num_predict": 1}}
    return {**body, "max_output_tokens" if "input" in body else "max_tokens": 1}


def with_question(body: dict[str, Any], question: str) -> dict[str, Any]:
    """The body with another text of the user's last message."""
    body = copy.deepcopy(body)
    talk = body.get("messages") or body.get("input") or []
    last = next(message for message in reversed(talk) if message.get("role") == "user")
    if isinstance(last["content"], str):
        last["content"] = question
    else:
        last["content"][-1]["text"] = question
    return body


def ask(port: int, path: str, body: dict[str, Any]) -> float:
    """Seconds until the answer of the served model has ended."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as reply:
        body = {**body, "model": json.load(reply)["data"][0]["id"]}
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=3600) as reply:
        reply.read()
    return time.perf_counter() - begin


def counts(port: int) -> tuple[int, int]:
    """Tokens of prompts that the cache had, and that it had not, since the server started."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/performance/stats", timeout=60) as reply:
        found = json.load(reply)["prefix_cache"]
    return found["hit_tokens"], found["miss_tokens"]


def main() -> None:
    """Prints one line per agent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ctx", type=int, default=32768)
    given = parser.parse_args()
    turns = first_turns(given.folder)
    if not turns:
        raise SystemExit(f"restart: {given.folder} holds no requests of agents (NAME-1.json)")
    with tempfile.TemporaryDirectory() as pages:
        flags = ("--ctx-size", str(given.ctx), "--cache-disk", "20GB", "--cache-disk-folder", pages)
        cold = {}
        with serving(given.model, *flags) as (port, _):
            for name, turn in turns.items():
                body = shortened(turn)
                cold[name] = ask(port, turn["path"], body)
                ask(port, turn["path"], body)
        with serving(given.model, *flags) as (port, _):
            for name, turn in turns.items():
                body = shortened(turn)
                shares, seconds = [], []
                for asked in (body, with_question(body, ANOTHER)):
                    before = counts(port)
                    seconds.append(ask(port, turn["path"], asked))
                    n_hit, n_miss = (now - then for now, then in zip(counts(port), before, strict=True))
                    shares.append(n_hit / (n_hit + n_miss))
                print(
                    f"{name:<12} {n_hit + n_miss:>6} tokens, {shares[0]:6.1%} cached, {shares[1]:6.1%} with another"
                    f" question; {seconds[0]:7.2f} s, {cold[name]:7.2f} s at first",
                    flush=True,
                )


if __name__ == "__main__":
    main()
