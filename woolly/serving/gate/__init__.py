"""ASGI middleware that every request passes before its route, one concern each, in the order of the list in app.py.

    Identity      gives the request an id, counts it and writes its log line
    Refusals      turns an exception into an error reply, or a rejected WebSocket
    Access        checks the Host and Origin headers and the API key
    Rates         counts the request against its client's rate
    Draining      rejects requests while the server stops
    Bodies        reads the body within its limits and parses its JSON once
    Disconnect    cancels the route when its client goes away

A layer takes the app that it wraps as its first argument. Layers share `scope["state"]`, which routes see as
`request.state`: `id`, `client` (its name in the log), `bucket` (rate limit key), `owner` (of its
sessions), `account` (with its limits, None without keys), `is_admin` (whether it may load and unload models),
`status` (of the reply, None before it starts), `reason` (of a rejection, else None), `ignored`
(fields that had no effect, for the header x-woolly-ignored) and, if the request has a body, `json` (its value).
"""

__all__: list[str] = []
