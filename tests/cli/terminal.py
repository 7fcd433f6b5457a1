"""Commands run within the test's own process: quick, and errors come as exceptions."""

from typer.testing import CliRunner

from woolly.cli.app import app
from woolly.errors import WoollyError


def woolly(*arguments, stdin=""):
    """Standard output of a command that succeeds; an error of the user's input is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if isinstance(result.exception, WoollyError):
        raise result.exception
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout
