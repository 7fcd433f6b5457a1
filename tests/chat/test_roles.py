"""A conversation reaches the model whole, also if its template refuses or drops roles; one that is shown stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly.chat import Message, OtherPart, TextPart
from woolly.chat.roles import check_roles, fit_roles
from woolly.errors import TemplateError
from woolly.templates import ChatTemplate

ANY = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
# As Mistral's: a system message at the start alone, then users and assistants in turn.
ALTERNATING = (
    "{% set ns = namespace(next='user') %}{% for m in messages %}{% if m.role == 'system' and loop.first %}{% else %}"
    "{% if m.role != ns.next %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.next = 'assistant' if m.role == 'user' else 'user' %}{% endif %}[{{ m.role }}:{{ m.content }}]"
    "{% endfor %}"
)
# As Gemma's: no system at all.
WITHOUT_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + ALTERNATING
)
# As Llama 2's kin: later systems vanish without a word.
DROPPING = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}[{{ m.role }}:{{ m.content }}]{% endif %}"
    "{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('no') }}"
    "{% endif %}[{{ m.role }}:{% for p in m.content %}{{ p.text if p.type == 'text' else p.type }}|{% endfor %}]"
    "{% endfor %}"
)
REMINDER = "<system-reminder>\nb\n</system-reminder>"


def shown(source, roles, texts="abcdefgh"):
    template = ChatTemplate(source)
    messages = [Message(role, text) for role, text in zip(roles.split(), texts, strict=False)]
    return template.render([message.to_template() for message in fit_roles(messages, template)])


@pytest.mark.parametrize(
    ("source", "roles", "wanted"),
    [
        (ANY, "system system user system user user", "[system:a][system:b][user:c][system:d][user:e][user:f]"),
        (ANY, "developer user", "[system:a][user:b]"),
        (ALTERNATING, "system user assistant user", "[system:a][user:b][assistant:c][user:d]"),
        (ALTERNATING, "system developer user", "[system:a\n\nb][user:c]"),
        (ALTERNATING, "user user assistant assistant user", "[user:a\n\nb][assistant:c\n\nd][user:e]"),
        (ALTERNATING, "user system assistant", f"[user:a\n\n{REMINDER}][assistant:c]"),
        (WITHOUT_SYSTEM, "system user assistant", "[user:a\n\nb][assistant:c]"),
        (WITHOUT_SYSTEM, "system system user", "[user:a\n\nb\n\nc]"),
        (DROPPING, "user system user user", f"[user:a][user:{REMINDER}][user:c][user:d]"),
        (DROPPING, "system system user", "[system:a\n\nb][user:c]"),
        ("nothing", "system system", "nothing"),
    ],
)
def test_every_text_is_in_the_prompt(source, roles, wanted):
    assert shown(source, roles) == wanted


def test_content_parts_stay_parts():
    template = ChatTemplate(PARTS)
    image = OtherPart({"type": "image"})
    messages = [Message("user", "a"), Message("user", (TextPart("b"), image)), Message("assistant", "c")]
    fitted = fit_roles(messages, template)
    assert fitted[0].content == (TextPart("a"), TextPart("b"), image) and len(fitted) == 2


@pytest.mark.parametrize("source", [ANY, ALTERNATING, WITHOUT_SYSTEM, DROPPING])
@given(roles=st.lists(st.sampled_from(["system", "developer", "user", "assistant"]), max_size=8))
def test_growing_conversation_keeps_its_prefix(source, roles):
    template = ChatTemplate(source)
    messages = [Message("user", "first"), *(Message(role, f"text {i}") for i, role in enumerate(roles))]
    whole = fit_roles(messages, template)
    assert all(message.text in "".join(one.text for one in whole) for message in messages)
    for n in range(1, len(messages)):
        before = fit_roles(messages[:n], template)
        assert whole[: len(before) - 1] == before[:-1]
        assert whole[len(before) - 1].text.startswith(before[-1].text)


def test_unknown_role_error_suggests_the_nearest():
    with pytest.raises(TemplateError, match=r"message 2 has the role 'usr', .*; did you mean 'user'\?"):
        check_roles([Message("user", "a"), Message("usr", "b")], "{{ messages }}")
    with pytest.raises(TemplateError, match="the roles are system, developer"):
        check_roles([Message("42", "a")], "{{ messages }}")
    check_roles([Message("ipython", "a")], "{% if message.role == 'ipython' %}")
