"""Stop strings are found in any cut of the text, and never shown."""

from hypothesis import given
from hypothesis import strategies as st

from woolly.tokens.stop_strings import StopMatcher


def run(pieces, stops):
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + matcher.finish(), False


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_any_chunking_gives_the_same_text(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, stopped = run(pieces, tuple(stops))
    # However it is cut, the text ends before the stop string that is complete first.
    ends = {stop: text.find(stop) + len(stop) for stop in stops if stop in text}
    assert stopped == bool(ends)
    if not stopped:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)


def test_text_that_may_begin_a_stop_string_is_buffered():
    matcher = StopMatcher(("</end>",))
    assert matcher.push("hello <") == ("hello ", False)
    assert matcher.push("/e") == ("", False)
    assert matcher.push("xit") == ("</exit", False)
    assert matcher.finish() == ""
