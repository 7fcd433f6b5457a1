"""Requests of all kinds, run together in any order, give exactly what each gives alone."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import SamplingParams
from woolly.engine import DraftModelProposer, Engine, PromptLookupProposer, RequestOptions
from woolly.engine.loading.load import load_model
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend
from woolly.tokens import Tokenizer

CTX = 192
N_REQUESTS = 200


@dataclass(frozen=True)
class Case:
    """One request, and after how many of its tokens it is cancelled."""

    prompt: tuple[int, ...]
    params: SamplingParams
    cancel_after: int | None
    priority: int


@dataclass(frozen=True)
class Result:
    tokens: tuple[int, ...]
    text: str
    reason: str
    stop_reason: object
    logprobs: tuple


SAMPLERS = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 5, "repeat_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 1.0, "dry_multiplier": 0.8, "typical_p": 0.9},
    {"mirostat": 2},
    {"mirostat": 1, "temperature": 1.2},
    {"temperature": 1.2, "xtc_probability": 0.5, "dynatemp_range": 0.5},
    {"temperature": 0, "repeat_penalty": 1.5},
    {"temperature": 1.0, "logit_bias": {65: 4.0, 66: False}},
    {"temperature": 0.9, "logits_processors": (lambda ids, logits: np.roll(logits, len(ids) % 7),)},
)
GRAMMARS = (
    {},
    {},
    {},
    {"regex": "[a-f]{3,30}"},
    {"choice": ("yes", "no", "perhaps")},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
)


def make_cases():
    """Prompts that begin alike, repeat themselves, or have nothing in common; all samplers, ends and cancellations."""
    random = np.random.RandomState(11)
    common = random.randint(0, 256, 100).tolist()
    cases = []
    for i in range(N_REQUESTS):
        own = random.randint(0, 256, random.randint(1, 60)).tolist()
        kind = random.randint(4)
        head = common[: random.randint(0, 100)] if kind == 0 else [7, 8, 9, 10] * random.randint(0, 20)
        prompt = (own, head + own, (own * 5)[:120], own[:3])[kind]
        grammar = GRAMMARS[random.randint(len(GRAMMARS))]
        params = SamplingParams(
            max_tokens=int(random.randint(1, 60)),
            seed=i if random.randint(2) else 0,
            stop=("e", "th") if random.randint(3) == 0 else (),
            ignore_eos=bool(random.randint(2)) and not grammar,
            logprobs=2 if random.randint(4) == 0 else None,
            prompt_logprobs=1 if random.randint(6) == 0 else None,
            **SAMPLERS[random.randint(len(SAMPLERS))],
            **grammar,
        )
        cancel = int(random.randint(0, 20)) if random.randint(5) == 0 else None
        cases.append(Case(tuple(prompt), params, cancel, int(random.randint(3))))
    return cases


@functools.cache
def cases():
    return make_cases()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_tiny(TINY["llama"], tmp_path_factory.mktemp("together") / "tiny.gguf")
    with open_gguf(path) as file:
        plan = trace(file)
        program = CpuBackend().compile(plan, file.tensors, Options(threads=1))
        yield program, Tokenizer.from_metadata(file.metadata)


def drive(engine, order, seed):
    """Arrivals spread over the steps; cancellations when their time has come."""
    random = np.random.RandomState(seed)
    waiting = list(order)
    requests = {}
    for _ in range(20_000):
        for _ in range(random.randint(0, 6)):
            if waiting:
                i = waiting.pop()
                case = cases()[i]
                requests[i] = engine.add(
                    engine.new_request(case.prompt, case.params, RequestOptions(priority=case.priority))
                )
        engine.step()
        for i, request in requests.items():
            limit = cases()[i].cancel_after
            if limit is not None and request.finish_reason is None and len(request.output) > limit:
                engine.cancel(request)
        if not waiting and engine.is_idle:
            return requests
    raise AssertionError("the engine does not come to an end")


def result(request):
    logprobs = (tuple(request.logprobs), tuple(request.prompt_logprobs))
    return Result(tuple(request.output), request.text, request.finish_reason, request.stop_reason, logprobs)


def drive_with_head(model, head, plan_conversion, n_requests):
    """The longest requests together with a head that guesses for them; each gives what it gives alone without one."""
    loaded = load_model(model, "cpu", Options(threads=1), draft=True, draft_file=head)
    plain = load_model(model, "cpu", Options(threads=1))
    chosen = sorted(range(N_REQUESTS), key=lambda i: len(cases()[i].prompt))[-n_requests:]
    draft = plan_conversion(loaded)
    engine = Engine(loaded.program, loaded.tokenizer, ctx=CTX, kv_tokens=600, chunk=32, max_running=6, draft=draft)
    requests = drive(engine, chosen, 3)
    for i, request in requests.items():
        alone = drive(Engine(plain.program, plain.tokenizer, ctx=CTX), [i], 0)[i]
        same(result(request), result(alone), cases()[i])
    assert engine.scheduler.pages.n_free == engine.scheduler.pages.n_pages
    loaded.close()
    plain.close()
    return requests.values()


@pytest.fixture(scope="module")
def alone(model):
    """Each request in an engine of its own, without speculation."""
    program, tokenizer = model
    out = {}
    for i in range(N_REQUESTS):
        engine = Engine(program, tokenizer, ctx=CTX)
        out[i] = result(drive(engine, [i], 0)[i])
    return out


def same(got, wanted, case):
    if case.cancel_after is not None and "cancelled" in (got.reason, wanted.reason):
        # With speculation several tokens come in one step, so the cut may fall a little later.
        n = min(len(got.tokens), len(wanted.tokens))
        assert n > case.cancel_after
        assert got.tokens[:n] == wanted.tokens[:n]
        assert got.logprobs[0][:n] == wanted.logprobs[0][:n]
        assert got.text.startswith(wanted.text) or wanted.text.startswith(got.text)
    else:
        assert got == wanted


class Drafts:
    """Half of the requests are guessed by lookup, the others by the model itself: most of its guesses come true."""

    def __init__(self, program):
        self.parts = [PromptLookupProposer(), DraftModelProposer(program, 4 * CTX, CTX)]

    def propose(self, wanted):
        return [self.parts[request.id % 2].propose([(request, n)])[0] for request, n in wanted]

    def forget(self, request):
        self.parts[request.id % 2].forget(request)


# Each chunk with either room, and either way of guessing with each chunk and each room.
WAYS = [
    *((16, "plenty", False), (16, "tight", True)),
    *((128, "plenty", True), (128, "tight", False)),
    *((512, "plenty", False), (512, "tight", True)),
]


@pytest.mark.parametrize(("chunk", "room", "speculation"), WAYS)
def test_concurrent_requests_give_the_output_of_each_alone(model, alone, chunk, room, speculation, monkeypatch):
    if chunk == 128:  # one grammar in each step: the others are deferred to a later one
        monkeypatch.setattr("woolly.engine.step.deferred_rows.GRAMMAR_SECONDS", 0.0)
    program, tokenizer = model
    engine = Engine(
        program,
        tokenizer,
        ctx=CTX,
        kv_tokens=20 * CTX if room == "plenty" else CTX,
        chunk=chunk,
        max_running=6,
        draft=Drafts(program) if speculation else None,
        draft_tokens=5,
    )
    seed = chunk + speculation
    requests = drive(engine, np.random.RandomState(seed).permutation(N_REQUESTS).tolist(), seed)
    for i, request in requests.items():
        same(result(request), alone[i], cases()[i])
    pool = engine.scheduler.pages
    assert pool.n_free == pool.n_pages
    assert engine.prefix_stats().hit_tokens > 0
    if room == "tight":
        assert engine.scheduler.n_preemptions > 0
    if speculation:
        assert sum(s.n_accepted for s in requests.values()) > 0


def test_requests_cover_every_kind(alone):
    reasons = [outcome.reason for outcome in alone.values()]
    assert {"stop", "length", "cancelled"} == set(reasons)
    assert any(case.params.structure and alone[i].reason == "stop" for i, case in enumerate(cases()))
    assert any(isinstance(outcome.stop_reason, str) for outcome in alone.values())
