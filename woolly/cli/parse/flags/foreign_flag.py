"""ForeignFlag: a flag of another program, with its option in Woolly or the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from woolly.cli.parse.usage_errors import UsageError


@dataclass(frozen=True)
class ForeignFlag:
    """Flag of another program: its name in Woolly, or how it is handled."""

    names: str
    ours: str = ""  # equivalent option; the row applies to the commands that have it
    reason: str = ""  # why it is not supported
    takes_value: bool = True
    is_list: bool = False  # all words up to the next flag are its values, which `into` gets separated by commas
    off_names: str = ""  # names that turn a switch off
    done: str = ""  # values that request default behavior; a switch has on and off
    is_harmless: bool = False  # False: other values change the output and are rejected
    bare: str = ""  # value if the flag is used without one
    into: Callable[[str], Sequence[str]] | None = None  # words that replace the flag and its value
    is_weak: bool = False  # the words give way to the same option typed by the user
    sets: str = ""  # environment variable that gets the value, or 1 for a switch
    prints: Callable[[], str] | None = None  # text that the flag prints before the program exits
    noted: str = ""  # notice about a difference of the equivalent option
    commands: str = ""  # commands that the row applies to; "": all
    program: str = "llama.cpp"

    # Pattern of a next word that belongs to a flag with `bare`.
    values: ClassVar[frozenset[str]] = frozenset({"on", "off", "auto", "0", "1", "true", "false"})

    def applies_to(self, command: str, options: Collection[str]) -> bool:
        """True if the row is for a command with these options."""
        return (not self.commands or command in self.commands.split()) and (not self.ours or self.ours in options)

    def value_of(self, name: str, value: str) -> str:
        """Return the value of the flag as typed; a switch has on or off."""
        if self.takes_value:
            return value
        return "off" if name in self.off_names.split() else "on"

    def notice(self, command: str, name: str, value: str) -> str:
        """Return the notice about the flag as typed, or an empty string if Woolly does what it requests.

        Raises UsageError if the flag would change the output.
        """
        value = self.value_of(name, value)
        if value.lower() in self.done.split() or not self.reason:
            return ""
        typed = f"{name} {value}".rstrip() if self.takes_value else name
        if self.is_harmless:
            return f"{typed} has no effect: {self.reason}"
        raise UsageError(f"{command} does not support {typed}: {self.reason}; omit it")


def harmless(names: str, reason: str = "", **given: Any) -> ForeignFlag:
    """Return the row of a flag that cannot change the output."""
    return ForeignFlag(names, reason=reason, is_harmless=True, **given)


def switch(names: str, reason: str = "", **given: Any) -> ForeignFlag:
    """Return the row of a switch that cannot change the output."""
    return ForeignFlag(names, reason=reason, takes_value=False, is_harmless=True, **given)


def rejected(names: str, reason: str, **given: Any) -> ForeignFlag:
    """Return the row of a flag that would change the output."""
    return ForeignFlag(names, reason=reason, **given)


def rejected_switch(names: str, reason: str, **given: Any) -> ForeignFlag:
    """Return the row of a switch that would change the output."""
    return ForeignFlag(names, reason=reason, takes_value=False, **given)


def alias(names: str, ours: str, **given: Any) -> ForeignFlag:
    """Return the row of a flag that has another name in Woolly."""
    return ForeignFlag(names, ours, **given)


def words(names: str, *replacement: str, **given: Any) -> ForeignFlag:
    """Return the row of a switch that is replaced by these words; the first one is the option."""
    return ForeignFlag(names, replacement[0], takes_value=False, into=lambda _: replacement, **given)
