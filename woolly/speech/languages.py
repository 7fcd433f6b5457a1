"""Languages of Whisper, by the codes of its language tokens."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from woolly.errors import RequestError

_TABLE = """
en english zh chinese de german es spanish ru russian ko korean fr french ja japanese pt portuguese tr turkish pl polish
ca catalan nl dutch ar arabic sv swedish it italian id indonesian hi hindi fi finnish vi vietnamese he hebrew
uk ukrainian el greek ms malay cs czech ro romanian da danish hu hungarian ta tamil no norwegian th thai ur urdu
hr croatian bg bulgarian lt lithuanian la latin mi maori ml malayalam cy welsh sk slovak te telugu fa persian lv latvian
bn bengali sr serbian az azerbaijani sl slovenian kn kannada et estonian mk macedonian br breton eu basque is icelandic
hy armenian ne nepali mn mongolian bs bosnian kk kazakh sq albanian sw swahili gl galician mr marathi pa punjabi
si sinhala km khmer sn shona yo yoruba so somali af afrikaans oc occitan ka georgian be belarusian tg tajik sd sindhi
gu gujarati am amharic yi yiddish lo lao uz uzbek fo faroese ht haitian_creole ps pashto tk turkmen nn nynorsk
mt maltese sa sanskrit lb luxembourgish my myanmar bo tibetan tl tagalog mg malagasy as assamese tt tatar haw hawaiian
ln lingala ha hausa ba bashkir jw javanese su sundanese yue cantonese
"""
_WORDS = _TABLE.split()

# Code to name.
NAMES: Mapping[str, str] = {code: name.replace("_", " ") for code, name in zip(_WORDS[::2], _WORDS[1::2], strict=True)}
_OTHER = {"burmese": "my", "valencian": "ca", "flemish": "nl", "castilian": "es", "mandarin": "zh", "jv": "jw"}


def find_language(given: str, known: Sequence[str]) -> str:
    """Return the code of a language, given as code or name; raise RequestError if it is not in `known`."""
    text = given.strip().lower().replace("_", "-")
    codes = {name: code for code, name in NAMES.items()} | _OTHER
    code = codes.get(text, text.split("-")[0])
    if code in known:
        return code
    names = [NAMES.get(one, one) for one in known]
    near = difflib.get_close_matches(text, [*known, *names], 1, 0.7)
    advice = f"did you mean {near[0]}?" if near else f"use a code such as {', '.join(known[:4])}"
    raise RequestError(f"the language {given[:40]!r} is not supported by this model; {advice}", field="language")
