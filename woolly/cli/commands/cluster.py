"""`woolly cluster`: replicas for front ends on other machines, and cluster checks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, complete_model
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.errors import RequestError

_ACTIONS = ("check", "replica")
_LISTEN = "127.0.0.1:7070"


@command(
    Argument("action", "check|replica", "Action.", required=True),
    Option("--model -m", "For check: the model.", complete=complete_model),
    Option("--replicas", "For check: processes on this machine.", int, shown="as for `woolly serve`"),
    Option("--join", "For check: replicas on other machines, HOST:PORT, separated by commas."),
    Option("--cluster-secret-file", "File with the secret shared with replicas on other machines.", Path),
    Option("--listen", "For replica: address to listen at for the front end, HOST:PORT.", default=_LISTEN),
    AS_JSON,
)
def cluster(
    action: str,
    model: str | None,
    replicas: int | None,
    join: str | None,
    cluster_secret_file: Path | None,
    listen: str,
    as_json: bool,
) -> None:
    """Check a cluster before clients connect, or run a replica for a front end on another machine.

    `check` starts or queries every replica and reports differences: identities, versions, clocks, memory, port. The
    exit code is 1 if a problem would stop the cluster. `replica` waits for `woolly serve --join`. Both need a secret
    for replicas on other machines: --cluster-secret-file or WOOLLY_CLUSTER_SECRET. Other settings are those of `woolly
    serve`, in woolly.toml and the environment.
    """
    if action not in _ACTIONS:
        raise UsageError(f"unknown action {action!r}; expected one of {', '.join(_ACTIONS)}")
    from woolly.serving.settings.configuration import read_settings

    given: dict[str, Any] = {
        "model": model,
        "replicas": replicas,
        "join": None if join is None else [join],
        "cluster_secret_file": cluster_secret_file,
    }
    settings = read_settings({name: value for name, value in given.items() if value is not None})
    if action == "replica":
        _replica(settings.secret, listen)
        return
    from woolly.cluster.check import check_cluster

    found = check_cluster(settings)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        names = ("replica", "state", "host", "version", "level", "threads", "clock_ahead")
        for one in found.replicas:
            told = (f"{name} {one[name]}" for name in names if name in one)
            click.echo(", ".join(told))
        if found.identity is not None:
            click.echo(f"identity {found.identity}")
        for fault in found.faults:
            click.echo(f"fault: {fault}")
    if found.faults:
        raise click.exceptions.Exit(1)


def _replica(secret: str | None, listen: str) -> None:
    if secret is None:
        raise RequestError(
            "a listening replica needs the secret of its front end, with at least 32 characters, in"
            " --cluster-secret-file or WOOLLY_CLUSTER_SECRET"
        )
    from woolly.cluster.replica_server import ReplicaServer
    from woolly.serving.observability.logs import set_up_logs

    set_up_logs("info", False)
    server = ReplicaServer(listen, secret)
    server.drain_on_signals()
    click.echo(f"a replica listens at {server.address}")
    server.serve()
