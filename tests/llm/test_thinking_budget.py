"""A thought ends when its budget is spent: by the model's own mark, in one step, and the answer follows."""

from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, RequestError, SamplingParams
from woolly.chat.reasoning import EFFORTS, REASONING_MARKS

HI = [{"role": "user", "content": "hi"}]
TURNS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}


def load_template(marks):
    signs = marks.signs or (marks.start, marks.end)
    return "{#" + " ".join(signs).replace("#}", "") + "#}" + TURNS


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(replace(TINY["llama"], context=1024), tmp_path_factory.mktemp("thoughts") / "tiny.gguf")


@pytest.fixture(scope="module")
def llms(path):
    opened = {}

    def get(template):
        if template not in opened:
            opened[template] = LLM(path, ctx=1024, threads=1, chat_template=template)
        return opened[template]

    yield get
    for llm in opened.values():
        llm.close()


class Thinker:
    """Writes a thought that never ends, and an answer if it is ended."""

    def __init__(self, llm, marks, thought="", answer="Yes."):
        self.llm, self.marks, self.thought, self.answer = llm, marks, thought, answer

    def __call__(self, ids, logits):
        written = self.llm.tokenizer.decode(list(ids)).rpartition("user: hi\n")[2]
        marks = self.marks
        if len(written) < len(marks.start):
            return self._token(marks.start[len(written)])
        thought, end, rest = written.removeprefix(marks.start).partition(marks.end)
        if not end:
            return self._token(self.thought[len(thought)] if len(thought) < len(self.thought) else "x")
        whole = (marks.again if marks.has_channels else "") + marks.answer + self.answer
        if rest == whole:
            return self.llm.tokenizer.eos_id
        assert whole.startswith(rest), rest
        return self._token(whole[len(rest)])

    def _token(self, character):
        (token,) = self.llm.tokenizer.encode(character, add_special=False)
        return token


@pytest.mark.parametrize("budget", [1, 40])
@pytest.mark.parametrize("marks", REASONING_MARKS, ids=lambda marks: "".join(c for c in marks.start if c.isalpha()))
def test_reasoning_ends_at_its_budget_with_any_markers(llms, marks, budget):
    llm = llms(load_template(marks))
    params = SamplingParams(custom_sampler=Thinker(llm, marks), max_tokens=400, reasoning_budget=budget)
    answer = llm.chat(HI, params)
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("x" * budget, "Yes.", "stop")
    chunks = list(llm.chat(HI, params, stream=True))
    assert "".join(chunk.reasoning for chunk in chunks) == "x" * budget
    assert "".join(chunk.text for chunk in chunks) == "Yes."


BIASED = SamplingParams(max_tokens=20, temperature=0, logit_bias={"x": 100.0})
THINK = next(marks for marks in REASONING_MARKS if marks.start == "<think>" and not marks.signs)
PLAIN = load_template(THINK)
OPEN = PLAIN + "{% if add_generation_prompt %}<think>{% endif %}"


def test_budget_zero_means_no_reasoning(llms):
    llm = llms(PLAIN)
    layout, _ = llm.prepare_chat(HI, reasoning_budget=0)
    assert layout.text.endswith("<think></think>")  # as reasoning_effort="none"
    switch = llms(PLAIN + "{% if enable_thinking %}<think>{% endif %}")
    n_mark = len(llm.tokenizer.encode("</think>", add_special=False))
    answer = switch.chat(HI, BIASED, reasoning_budget=0, variables={"enable_thinking": True})
    assert (answer.reasoning, answer.text) == ("", "x" * (20 - n_mark))


def test_end_of_reasoning_takes_one_step(llms):
    llm = llms(PLAIN)
    params = SamplingParams(custom_sampler=Thinker(llm, THINK, answer="Y"), max_tokens=400, reasoning_budget=5)
    before = llm.engine.n_steps
    llm.chat(HI, params)
    # The prompt, whose row gives the first token; 6 more of <think>, 5 of the thought, then </think> with what follows
    # it, and the end of the answer.
    assert llm.engine.n_steps - before == 1 + 6 + 5 + 1 + 1


def test_message_comes_before_the_end_marker(llms):
    llm = llms(PLAIN)
    params = SamplingParams(
        custom_sampler=Thinker(llm, THINK), max_tokens=400, reasoning_budget=3, reasoning_budget_message=" Enough."
    )
    assert llm.chat(HI, params).reasoning == "xxx Enough."


@pytest.mark.parametrize("budget", range(6, 14))
def test_partial_end_marker_is_completed_once(llms, budget):
    llm = llms(PLAIN)
    params = SamplingParams(
        custom_sampler=Thinker(llm, THINK, thought="xx</thi</think"), max_tokens=400, reasoning_budget=budget
    )
    answer = llm.chat(HI, params)
    # The model completes the second mark by itself; before that, the budget completes what has begun.
    begun = {6: "xx", 7: "xx", 8: "xx</thi"}.get(budget, "xx</thi")
    assert (answer.reasoning, answer.text) == (begun, "Yes.")


def test_open_reasoning_of_the_prompt_counts(llms):
    n_mark = len(llms(OPEN).tokenizer.encode("</think>", add_special=False))
    answer = llms(OPEN).chat(HI, BIASED, reasoning_budget=4)
    assert (answer.reasoning, answer.text) == ("xxxx", "x" * (16 - n_mark))


def test_schema_applies_after_reasoning(llms):
    llm = llms(PLAIN)
    answer = llm.chat(HI, max_tokens=200, temperature=0, logit_bias={"x": 50.0}, reasoning_budget=7, schema=SCHEMA)
    assert len(answer.reasoning) <= 7
    assert answer.text.replace(" ", "") == '{"a":1}'


def test_every_token_has_its_log_probability(llms):
    llm = llms(PLAIN)
    params = SamplingParams(custom_sampler=Thinker(llm, THINK), max_tokens=400, reasoning_budget=3, logprobs=1)
    answer = llm.chat(HI, params)
    assert len(answer.logprobs) == len(answer.token_ids)
    assert all(one.logprob <= 0 for one in answer.logprobs)


def test_effort_is_a_budget_if_the_template_has_no_effort(llms):
    llm = llms(PLAIN)
    for effort, budget in EFFORTS.items():
        assert llm.prepare_chat(HI, reasoning_effort=effort)[0].params.reasoning_budget == budget
    assert llm.prepare_chat(HI, reasoning_effort="low", reasoning_budget=9)[0].params.reasoning_budget == 9
    knows = llms("{{ reasoning_effort }}" + PLAIN)
    assert knows.prepare_chat(HI, reasoning_effort="low")[0].params.reasoning_budget is None
    with pytest.raises(RequestError, match="no such switch"):
        llms(TURNS).prepare_chat(HI, reasoning_effort="low")


def test_replayed_answer_ends_reasoning_at_the_same_place(llms):
    llm = llms(OPEN)
    params = SamplingParams(max_tokens=40, seed=3, logit_bias={"<": -100.0}, reasoning_budget=4)
    whole = llm.chat(HI, params)
    assert llm.chat(HI, params, replay_tokens=whole.token_ids[:10]).token_ids == whole.token_ids


def test_reasoning_can_be_ended_immediately(llms):
    begun = llms(OPEN)
    _, (request,) = begun.prepare_chat(HI, max_tokens=60, temperature=0, logit_bias={"x": 100.0})
    sampler = request.sampler
    for _ in range(3):
        sampler.next(begun.tokenizer.encode("x", add_special=False)[0])
    assert sampler.forced == () and sampler.end_reasoning()
    assert begun.tokenizer.decode(list(sampler.forced)) == "</think>"
    for token in sampler.forced:
        sampler.next(token)
    assert not sampler.end_reasoning()  # it is over


def test_plain_completion_has_no_reasoning(llms):
    with pytest.raises(RequestError, match="reasoning_budget needs the reasoning markers of a chat template; use chat"):
        llms(PLAIN).generate("hi", reasoning_budget=3)
    with pytest.raises(RequestError, match="reasoning_budget_message"):
        SamplingParams(reasoning_budget_message="x")
    with pytest.raises(RequestError, match="at least -1"):
        SamplingParams(reasoning_budget=-2)
    assert SamplingParams(reasoning_budget=-1).reasoning_budget is None
