"""`/compact` of `woolly chat`: a note stands for older turns, is shown, saved and undone; `/undo`."""

import asyncio
from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, AsyncLLM, RequestError, SamplingParams
from woolly.chat.compaction import summary_text
from woolly.cli.chat.chat import Chat
from woolly.cli.chat.conversation import Conversation

LETTER, SPACE = {100: 100.0}, {32: 100.0}
THINKS = "{% for one in messages %}{{ one.content }}\n{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("compact") / "tiny.gguf"
    return write_tiny(replace(TINY["llama"], context=2048), path)


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, threads=1, ctx=1024) as llm:
        yield llm


@pytest.fixture
def chat(llm):
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logit_bias=LETTER)
    return Chat(llm, Conversation(params, system="Be brief."), None)


def test_summary_replaces_all_turns_but_the_last_until_undone(chat, capsys, tmp_path):
    for text in ("one " * 8, "two", "three"):
        chat.take(text)
    before = chat.conversation.all_messages
    chat.take("/compact")
    ((_, note),) = chat.conversation.notes
    system, question, answer = chat.conversation.all_messages
    assert system["content"] == f"Be brief.\n\n{summary_text(note)}" and question["content"] == "three"
    assert "2 turns are now this note" in capsys.readouterr().err and answer["role"] == "assistant"
    chat.take(f"/save {tmp_path / 'chat.json'}")
    chat.take("four")
    chat.take(f"/load {tmp_path / 'chat.json'}")
    assert chat.conversation.all_messages == [system, question, answer]
    chat.take("/compact undo")
    assert chat.conversation.all_messages == before
    chat.take("/compact undo")
    assert "there is no compaction to undo" in capsys.readouterr().err
    chat.take("/clear")
    chat.take("/compact")
    assert "there is no turn to compact" in capsys.readouterr().err and not chat.conversation.notes


def test_nearly_full_context_is_compacted_automatically(chat, capsys):
    chat.take("/compact auto")
    for _ in range(3):
        chat.take("wool " * 70)
    assert len(chat.conversation.messages) == 6 and chat.conversation.notes
    assert "now this note" in capsys.readouterr().err and chat.n_tokens < chat.llm.ctx
    chat.take("/compact ask")
    assert chat.compacts is False


def test_user_may_compact_when_the_context_is_full(chat, capsys):
    chat.question = lambda text: "compact" if "[Y/n/always/compact]" in text else ""
    for text in ("wool " * 70, "wool " * 70, "grass " * 40):
        chat.take(text)
    assert chat.conversation.notes and len(chat.conversation.messages) == 6, capsys.readouterr().err


def test_empty_summary_leaves_the_conversation_unchanged(chat, capsys):
    chat.take("one")
    chat.conversation.params = replace(chat.conversation.params, logit_bias=SPACE)
    chat.take("/compact")
    assert "the model returned an empty summary" in capsys.readouterr().err and not chat.conversation.notes
    chat.take("/compact sheep")
    assert "expected auto, ask, undo or no argument" in capsys.readouterr().err


@pytest.mark.parametrize("notes", ['"x"', '[["a", "b"]]', "[[9, 5]]", '[[5, "x"]]'])
def test_file_with_invalid_summaries_is_rejected(chat, tmp_path, capsys, notes):
    (tmp_path / "chat.json").write_text(f'{{"messages": [{{"role": "user", "content": "a"}}], "notes": {notes}}}')
    chat.take(f"/load {tmp_path / 'chat.json'}")
    assert "expected pairs of a number and a string" in capsys.readouterr().err


def test_library_compacts_and_shortens_too_long_messages(llm, model):
    long = [{"role": role, "content": "wool " * 20} for _ in range(8) for role in ("user", "assistant")]
    options = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "logit_bias": LETTER}
    note = llm.compact(long, **options)
    assert note and len(llm.prepare_note(long, **options)[1][0].prompt) <= 1024 - 8
    with pytest.raises(RequestError, match="1024"):
        llm.compact("wool " * 600, **options)

    async def later():
        async with AsyncLLM(model, threads=1, ctx=1024) as other:
            return await other.compact(long, **options)

    assert asyncio.run(later()) == note


def test_endless_reasoning_leaves_half_of_the_room_for_the_summary(model):
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, logit_bias=LETTER)
    with LLM(model, threads=1, ctx=1024, chat_template=THINKS) as thinker:
        n_mark = len(thinker.tokenizer.encode("</think>", add_special=False))
        notes = [thinker.compact("wool", params, reasoning_budget=given) for given in (None, 4, 0)]
    assert notes == ["d" * (20 - n_mark), "d" * (36 - n_mark), "d" * 40]


def test_undo_removes_the_last_turn(chat, capsys):
    for question in ("one", "two"):
        chat.take(question)
    chat.take("/undo")
    assert "the last turn is removed, 1 left; its question: two" in capsys.readouterr().err
    messages = chat.conversation.messages
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == "one" and chat.n_tokens > 0
    chat.take("/undo")
    chat.take("/undo")
    assert "there is no turn to undo" in capsys.readouterr().err
    assert messages == [] and chat.n_tokens == 0
