"""Chats in four dialects: the same wishes in the words of each, and how their streams are read."""

from __future__ import annotations

import json
import ssl
from typing import Any

from benchmarks.serving.sse import Answer, add, exchange

Data = dict[str, Any]

TEXTS = (
    "Name three colours.", "Why is the sky blue?", "Write a line about sheep.", "Count to five.",
    "What is two plus two?", "Say hello in French.",
)  # fmt: skip
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
PAINT = {
    "type": "object",
    "properties": {"color": {"type": "string", "enum": ["red", "green", "blue"]}},
    "required": ["color"],
    "additionalProperties": False,
}
SYSTEM = "You are a shepherd and answer in few words. " * 6  # a prefix that all share


def mixed_requests() -> list[Data]:
    """Requests of each dialect: greedy, with a seed where the dialect has one, with a tool and with a schema."""
    made = []
    for i, text in enumerate(TEXTS):
        for dialect in ("chat", "responses", "anthropic", "ollama"):
            for wish in ("greedy", "seed", "tool", "schema"):
                if dialect == "anthropic" and wish == "seed":
                    continue  # Anthropic's requests have none
                made.append({"dialect": dialect, "text": text, "wish": wish, "limit": 16 + 8 * (i % 4), "seed": i})
    return made


async def ask(host: str, port: int, request: Data, *, tls: ssl.SSLContext | None = None, key: str = "") -> Answer:
    """One streamed request in its dialect; `model` names whom it is for, where a server has several."""
    path, make, take = {
        "chat": ("/v1/chat/completions", _chat, _take_chat),
        "responses": ("/v1/responses", _responses, _take_responses),
        "anthropic": ("/v1/messages", _anthropic, _take_anthropic),
        "ollama": ("/api/chat", _ollama, _take_ollama),
    }[request["dialect"]]
    body = {"model": request.get("model", "any"), "stream": True, **make(request)}
    return await exchange(host, port, path, body, take, tls=tls, key=key)


def _messages(request: Data, *, has_system: bool = True) -> list[Data]:
    system = [{"role": "system", "content": SYSTEM}] if has_system else []
    return [*system, {"role": "user", "content": request["text"]}]


def _sampling(request: Data) -> Data:
    return {"temperature": 0} if request["wish"] != "seed" else {"temperature": 0.8, "seed": request["seed"]}


def _chat(request: Data) -> Data:
    body = {"messages": _messages(request), "max_tokens": request["limit"], **_sampling(request)}
    body["stream_options"] = {"include_usage": True}
    if request["wish"] == "tool":
        function = {"name": "paint", "description": "Paints.", "parameters": PAINT}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    elif request["wish"] == "schema":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    return body


def _responses(request: Data) -> Data:
    body = {
        "input": request["text"],
        "instructions": SYSTEM,
        "max_output_tokens": request["limit"],
        **_sampling(request),
    }
    if request["wish"] == "tool":
        tool = {"type": "function", "name": "paint", "description": "Paints.", "parameters": PAINT}
        body |= {"tools": [tool], "tool_choice": "required"}
    elif request["wish"] == "schema":
        body["text"] = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    return body


def _anthropic(request: Data) -> Data:
    body = {"messages": _messages(request, has_system=False), "system": SYSTEM, "max_tokens": request["limit"]}
    body["temperature"] = 0
    if request["wish"] == "tool":
        tool = {"name": "paint", "description": "Paints.", "input_schema": PAINT}
        body |= {"tools": [tool], "tool_choice": {"type": "any"}}
    elif request["wish"] == "schema":
        body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return body


def _ollama(request: Data) -> Data:
    body: Data = {"messages": _messages(request), "options": {"num_predict": request["limit"], **_sampling(request)}}
    if request["wish"] == "tool":
        function = {"name": "paint", "description": "Paints.", "parameters": PAINT}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    elif request["wish"] == "schema":
        body["format"] = SCHEMA
    return body


def _take_chat(answer: Answer, data: bytes) -> None:
    if data == b"[DONE]":
        answer.done = answer.finish_reason is not None
        return
    event = json.loads(data)
    answer.error = json.dumps(event["error"]) if "error" in event else answer.error
    for choice in event.get("choices", ()):
        add(answer, choice["delta"].get("content"))
        for call in choice["delta"].get("tool_calls", ()):
            add(answer, call["function"].get("name", "") + call["function"]["arguments"])
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    answer.usage = event.get("usage") or answer.usage


def _take_responses(answer: Answer, data: bytes) -> None:
    event = json.loads(data)
    kind = event["type"]
    if event["sequence_number"] != answer.usage.get("n_events", 0):
        answer.error = f"event {event['sequence_number']} came out of turn"
    answer.usage["n_events"] = event["sequence_number"] + 1
    if kind in ("response.output_text.delta", "response.function_call_arguments.delta"):
        add(answer, event["delta"])
    elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
        add(answer, event["item"]["name"])
    elif kind in ("response.completed", "response.incomplete", "response.failed", "error"):
        answer.finish_reason = kind
        answer.done = kind in ("response.completed", "response.incomplete") and not answer.error
        answer.error = answer.error or ("" if answer.done else json.dumps(event))
        if not answer.done:
            return
        answer.usage["completion_tokens"] = event["response"]["usage"]["output_tokens"]


def _take_anthropic(answer: Answer, data: bytes) -> None:
    event = json.loads(data)
    if event["type"] == "content_block_delta":
        add(answer, event["delta"].get("text") or event["delta"].get("partial_json"))
    elif event["type"] == "content_block_start":
        add(answer, event["content_block"].get("name"))
    elif event["type"] == "message_delta":
        answer.finish_reason = event["delta"]["stop_reason"]
        answer.usage = {"completion_tokens": event["usage"]["output_tokens"]}
    elif event["type"] == "message_stop":
        answer.done = answer.finish_reason is not None
    elif event["type"] == "error":
        answer.error = json.dumps(event)


def _take_ollama(answer: Answer, data: bytes) -> None:
    line = json.loads(data)
    if "error" in line:
        answer.error = line["error"]
        return
    add(answer, line["message"]["content"])
    for call in line["message"].get("tool_calls", ()):
        add(answer, call["function"]["name"] + json.dumps(call["function"]["arguments"]))
    if line["done"]:
        answer.done, answer.finish_reason = True, line["done_reason"]
        answer.usage = {"completion_tokens": line["eval_count"]}
