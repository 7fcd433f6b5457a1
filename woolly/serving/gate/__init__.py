"""ASGI middleware, in the order in which a request passes the layers.

    Identity      assigns a request id, counts the request and writes its log line
    Refusals      turns exceptions into error replies or rejected WebSockets
    Access        checks the Host and Origin headers and the API key
    Rates         enforces the rate limit of the client
    Draining      rejects requests while the server stops
    Bodies        reads the body within the size and time limits and parses its JSON once
    Disconnect    cancels the route when the client disconnects

Layers share `scope["state"]`, which routes see as `request.state`:

    id        request id
    client    name of the client in the log
    bucket    rate limit key
    owner     owner of the client's sessions
    account   account with its limits; None without keys
    is_admin  True if the client may load and unload models
    status    status of the reply; None before the reply starts
    reason    reason of an error; None if there is no error
    ignored   names of ignored fields, for the header x-woolly-ignored
    json      value of the body, if the request has a body
"""

__all__: list[str] = []
