from hypothesis import given
from hypothesis import strategies as st

from paceline.text import TextStream


def bytes_stream(stop=()):
    """A tokenizer whose tokens are UTF-8 bytes: the hardest case for incremental decoding."""
    return TextStream(lambda ids: bytes(ids).decode("utf-8", errors="replace"), stop)


@given(st.text(max_size=30))
def test_pieces_join_to_the_text_and_never_hold_half_a_character(text):
    stream = bytes_stream()
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces) or "\N{REPLACEMENT CHARACTER}" in text
    assert "".join(pieces) + stream.flush() == text


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_earliest_stop_string(text, stops):
    stream = bytes_stream(stops)
    emitted = ""
    for count, byte in enumerate(text.encode(), start=1):
        emitted += stream.push(byte)
        assert text[:count].startswith(emitted)
        if stream.stopped:
            assert any(stop in text[:count] for stop in stops)
            assert not any(stop in text[: count - 1] for stop in stops)
            break
    else:
        assert not any(stop in text for stop in stops)
    emitted += stream.flush()
    found = [at for stop in stops if (at := text[:count].find(stop)) >= 0] if text else []
    assert emitted == (text[: min(found)] if found else text)


def test_a_stop_string_across_tokens_is_not_leaked():
    stream = bytes_stream(["END"])
    assert [stream.push(b) for b in b"aEN"] == ["a", "", ""]
    assert stream.push(ord("x")) == "ENx"
    assert [stream.push(b) for b in b"END"] == ["", "", ""]
    assert stream.stopped and stream.flush() == ""
