"""A small MCP server over stdio, for tests: python tests/mcp/server.py. Written by hand, so that it starts at once."""

import json
import os
import sys
import time

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ANY = {"type": "object", "properties": {"name": {"type": "string"}, "seconds": {"type": "number"}}}


def add(arguments):
    """Adds two numbers."""
    return str(arguments["a"] + arguments["b"])


def variable(arguments):
    """Reads a variable of the environment."""
    return os.environ.get(arguments["name"], "(none)")


def fail(arguments):
    """Raises."""
    raise ValueError("the cage is empty")


def flood(arguments):
    """Returns very much."""
    return "x" * 100_000


def image(arguments):
    """Returns an image."""
    return {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def sleep(arguments):
    """Is slow."""
    time.sleep(arguments["seconds"])
    return "awake"


def crash(arguments):
    """Ends the server."""
    sys.stderr.write("the zoo burns\n")
    sys.stderr.flush()
    os._exit(3)


def shout(arguments):
    """Returns characters that drive a terminal."""
    return "\x1b[2J\x07ab\n\tc\rd\u202e\r\nend"


# Descriptions of a stranger: they drive a terminal, and are long.
shout.__doc__ = "\x1b]0;x\x07" + "long " * 20_000
LOUD = {"type": "string", "description": "\x1b[31m" + "y" * 9000, "enum": ["\x1b"]}
SCHEMAS = {"add": NUMBERS, "shout": {"type": "object", "properties": {"name": LOUD}}}

TOOLS = {tool.__name__: tool for tool in (add, variable, fail, flood, image, sleep, shout, crash)}


def listed():
    return [
        {
            "name": name,
            "description": tool.__doc__,
            "inputSchema": SCHEMAS.get(name, ANY),
            "annotations": {"readOnlyHint": tool is add},
        }
        for name, tool in TOOLS.items()
    ]


def call(name, arguments):
    try:
        given = TOOLS[name](arguments)
    except (ValueError, TypeError, KeyError) as error:
        return {"content": [{"type": "text", "text": f"it went wrong: {error}"}], "isError": True}
    return {"content": [given if isinstance(given, dict) else {"type": "text", "text": given}]}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "zoo", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": listed()}
    return call(params["name"], params.get("arguments", {})) if method == "tools/call" else None


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params", {}))
        outcome = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}) + "\n")
        sys.stdout.flush()
