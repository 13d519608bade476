from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.transport.challenge import Challenge, parse_challenges

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=10).filter(
    lambda text: text[0].isalpha()
)
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
CHALLENGES = st.lists(st.tuples(TOKEN, st.dictionaries(TOKEN, VALUE, min_size=1, max_size=4)), min_size=1, max_size=3)


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(CHALLENGES)
def test_what_is_written_is_read_back(challenges: list[tuple[str, dict[str, str]]]) -> None:
    text = ", ".join(
        scheme + " " + ", ".join(f"{name}={quote(value)}" for name, value in parameters.items())
        for scheme, parameters in challenges
    )
    assert parse_challenges([text]) == [Challenge(scheme, parameters) for scheme, parameters in challenges]


@given(st.lists(st.text(max_size=80), max_size=3))
def test_no_text_breaks_it(values: list[str]) -> None:
    for challenge in parse_challenges(values):
        assert challenge.scheme == challenge.scheme.lower() != ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push"',
            [
                Challenge(
                    "bearer",
                    {
                        "realm": "https://auth.docker.io/token",
                        "service": "registry.docker.io",
                        "scope": "repository:a/b:pull,push",
                    },
                )
            ],
        ),
        ('Basic realm="Registry, with \\"quotes\\""', [Challenge("basic", {"realm": 'Registry, with "quotes"'})]),
        (
            "Bearer realm=https://h/t?a=b, Basic realm=x",
            [Challenge("bearer", {"realm": "https://h/t?a=b"}), Challenge("basic", {"realm": "x"})],
        ),
        ("Negotiate, BASIC Realm = x", [Challenge("negotiate"), Challenge("basic", {"realm": "x"})]),
        ("Negotiate YWJj==, Basic realm=x", [Challenge("negotiate"), Challenge("basic", {"realm": "x"})]),
        ("Bearer", [Challenge("bearer")]),
        ("", []),
        ('=x, Basic realm="y"', []),
    ],
)
def test_challenges_as_registries_write_them(text: str, expected: list[Challenge]) -> None:
    assert parse_challenges([text]) == expected
