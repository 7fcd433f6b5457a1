"""String formats, each a pattern of its RFC."""

from __future__ import annotations

import re
from functools import lru_cache

from woolly.grammar.schema.language import ANY, Language, both, length
from woolly.grammar.schema.pattern import read_pattern

# Formats of the specification that no grammar can enforce. An unknown format is an annotation by the specification,
# such as OpenAPI's password and pydantic's path.
UNSUPPORTED = frozenset({"idn-hostname"})
_DIGITS = {
    "year": "[0-9]{4}",
    "leap": "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)",
    "hour": "(?:[01][0-9]|2[0-3])",
    "sixty": "[0-5][0-9]",
    "byte": "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    "h16": "[0-9a-fA-F]{1,4}",
}
_DATE = (
    "(?:{year}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|{leap}-02-29)"
)
_FRACTION = r"(?:\.[0-9]+)?"
# Second 60 is only accepted in UTC: in other time zones, it depends on the offset.
_TIME = (
    rf"(?:{{hour}}:{{sixty}}:{{sixty}}{_FRACTION}(?:[zZ]|[+-]{{hour}}:{{sixty}})"
    rf"|23:59:60{_FRACTION}(?:[zZ]|[+-]00:00))"
)
_IPV4 = r"(?:{byte}\.){3}{byte}"
_LS32 = "(?:{h16}:{h16}|{ipv4})"
_IPV6 = (
    "(?:(?:{h16}:){6}{ls32}|::(?:{h16}:){5}{ls32}|(?:{h16})?::(?:{h16}:){4}{ls32}"
    "|(?:(?:{h16}:){0,1}{h16})?::(?:{h16}:){3}{ls32}|(?:(?:{h16}:){0,2}{h16})?::(?:{h16}:){2}{ls32}"
    "|(?:(?:{h16}:){0,3}{h16})?::{h16}:{ls32}|(?:(?:{h16}:){0,4}{h16})?::{ls32}"
    "|(?:(?:{h16}:){0,5}{h16})?::{h16}|(?:(?:{h16}:){0,6}{h16})?::)"
)
_UCS = (
    r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}"
    r"\u{e1000}-\u{efffd}"
)
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_ATEXT = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"


def read_format(name: str) -> Language | None:
    """Return the text of a format; None if a grammar cannot enforce it."""
    if name in UNSUPPORTED:
        return None
    return _read(name) if name in _PATTERNS else ANY


@lru_cache(100)
def _read(name: str) -> Language:
    language = read_pattern(f"^(?:{_PATTERNS[name]})$")
    if name in _LENGTHS:
        language = both([language, length(*_LENGTHS[name])])
    return language


def _fill(pattern: str, **parts: str) -> str:
    parts = _DIGITS | parts
    return re.sub(r"\{([a-z]\w*)\}", lambda match: parts[match[1]], pattern)


def _uri(extra: str, private: str) -> tuple[str, str]:
    """Return the patterns of RFC 3986 (RFC 3987 with more characters): with a scheme, and relative."""
    unreserved = rf"a-zA-Z0-9\-._~{extra}"
    delims = r"!$&'()*+,;="
    percent = "%[0-9a-fA-F]{2}"
    pchar = f"(?:[{unreserved}{delims}:@]|{percent})"
    user = f"(?:[{unreserved}{delims}:]|{percent})*@"
    name = f"(?:[{unreserved}{delims}]|{percent})*"
    future = rf"[vV][0-9a-fA-F]+\.[a-zA-Z0-9\-._~{delims}:]+"
    host = rf"(?:\[(?:{_fill(_IPV6, ls32=_fill(_LS32, ipv4=_fill(_IPV4)))}|{future})\]|{name})"
    authority = f"//(?:{user})?{host}(?::[0-9]*)?(?:/{pchar}*)*"
    absolute = f"/(?:{pchar}+(?:/{pchar}*)*)?"
    rootless = f"{pchar}+(?:/{pchar}*)*"
    no_scheme = f"(?:[{unreserved}{delims}@]|{percent})+(?:/{pchar}*)*"
    query = rf"(?:\?(?:[{unreserved}{delims}:@/?{private}]|{percent})*)?"
    fragment = f"(?:#(?:[{unreserved}{delims}:@/?]|{percent})*)?"
    scheme = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{authority}|{absolute}|{rootless}|){query}{fragment}"
    return scheme, f"(?:{scheme}|(?:{authority}|{absolute}|{no_scheme}|){query}{fragment})"


def _email(extra: str, domain: str) -> str:
    atext = _ATEXT[:-1] + extra + "]"
    quoted = rf'"(?:[\x20\x21\x23-\x5b\x5d-\x7e{extra}]|\\[\x20-\x7e])*"'
    literal = rf"\[(?:{_fill(_IPV4)}|[iI][pP][vV]6:{_fill(_IPV6, ls32=_fill(_LS32, ipv4=_fill(_IPV4)))})\]"
    return rf"(?:{atext}+(?:\.{atext}+)*|{quoted})@(?:{domain}|{literal})"


def _template() -> str:
    """Return the pattern of RFC 6570."""
    literal = rf"(?:[\x21\x23\x24\x26\x28-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e{_UCS}{_PRIVATE}]|%[0-9a-fA-F]{{2}})"
    char = "(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})"
    variable = rf"{char}(?:\.?{char})*(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{literal}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*"


def _regex(depth: int) -> str:
    """Return a pattern of valid regular expressions with groups up to a depth.

    Character ranges and counts that need an order are limited to usual ones.
    """
    escape = r"\\[dDwWsStnrfv.^$*+?()\[\]{}|/\\]"
    member = rf"(?:[^\\\]\[^&~|\-\x00-\x1f]|{escape}|\\-|a-z|A-Z|0-9|a-f|A-F)"
    atom = rf"[^\\^$.*+?()\[\]{{}}|\x00-\x1f]|{escape}|\.|\[\^?{member}+\]"
    if depth:
        atom += rf"|\((?:\?:)?{_regex(depth - 1)}\)"
    count = r"(?:[*+?]|\{(?:0|[1-9][0-9]{0,2}),?\}|\{[01],[1-9][0-9]{0,2}\})\??"
    sequence = rf"(?:\^|\$|(?:{atom})(?:{count})?)*"
    return rf"{sequence}(?:\|{sequence})*"


# Labels with "--" at the third character are encoded in other ways, which a grammar cannot check.
_HOSTNAME = rf"(?!(?:[a-zA-Z0-9.-]*\.)?[a-zA-Z0-9-]{{2}}--){_LABEL}(?:\.{_LABEL})*"
_IDN_LABEL = rf"[a-zA-Z0-9{_UCS}](?:[a-zA-Z0-9{_UCS}-]*[a-zA-Z0-9{_UCS}])?"
_PATTERNS = {
    "date": _fill(_DATE),
    "time": _fill(_TIME),
    "date-time": rf"{_fill(_DATE)}[tT]{_fill(_TIME)}",
    "duration": (
        f"P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{_DURATION_TIME})?"
        f"|{_DURATION_TIME}|[0-9]+W)"
    ),
    "hostname": _HOSTNAME,
    "email": _email("", rf"{_LABEL}(?:\.{_LABEL})*"),
    "idn-email": _email(_UCS, rf"{_IDN_LABEL}(?:\.{_IDN_LABEL})*"),
    "ipv4": _fill(_IPV4),
    "ipv6": _fill(_IPV6, ls32=_fill(_LS32, ipv4=_fill(_IPV4))),
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": _uri("", "")[0],
    "uri-reference": _uri("", "")[1],
    "iri": _uri(_UCS, _PRIVATE)[0],
    "iri-reference": _uri(_UCS, _PRIVATE)[1],
    "uri-template": _template(),
    "json-pointer": _POINTER,
    "regex": _regex(3),
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
_LENGTHS = {"hostname": (1, 253)}
