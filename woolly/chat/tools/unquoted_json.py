"""UnquotedJson: converts an object without JSON quotes around keys and strings to JSON, character by character."""

from __future__ import annotations

from woolly.chat.tools.values import python_json, to_json

QUOTE = '<|"|>'  # around strings; one token of Gemma 4's vocabulary


class UnquotedJson:
    """Reads {key:<|"|>text<|"|>,other:[1,true]} from bracket to bracket. JSON strings are also accepted."""

    def __init__(self) -> None:
        self._depth = 0
        self._word = ""  # an incomplete key or number
        self._buffer = ""  # may be the beginning of a quote
        self._in_text = self._in_json = self._escaped = False
        self.is_done = False

    def rest(self) -> str:
        """Return the characters of a key or value that is cut off."""
        rest, self._word, self._buffer = self._word + self._buffer, "", ""
        return rest

    def push(self, character: str) -> str:
        """Return the JSON that a character completes."""
        if self._in_json:
            self._in_json = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
            return character
        self._buffer += character
        if self._buffer == QUOTE:
            self._buffer = ""
            self._in_text = not self._in_text
            word, self._word = self._word.strip(), ""
            return '"' + to_json(word)[1:-1]
        out = ""
        while self._buffer and not QUOTE.startswith(self._buffer):
            c, self._buffer = self._buffer[0], self._buffer[1:]
            out += to_json(c)[1:-1] if self._in_text else self._plain(c)
        return out

    def _plain(self, c: str) -> str:
        if c not in '"{[]}:,' or (c == '"' and self._word.strip()):
            self._word += c
            return ""
        word, self._word = self._word.strip(), ""
        if c == '"':
            self._in_json = True
        elif c == ":":
            return f"{to_json(word) if word else ''}: "
        elif c in "{[":
            self._depth += 1
        elif c in "]}":
            self._depth -= 1
            self.is_done = self._depth <= 0
        return (python_json(word) if word else "") + (", " if c == "," else c)
