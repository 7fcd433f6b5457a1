"""A model in stages writes what it writes in one process, also if a stage is lost in the middle of an answer."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import Tiny, write_tiny
from tests.cluster.stages import TOKEN, Process, names, on_threads, token_file, wait_for
from woolly import LLM, RequestError, SamplingParams
from woolly.cluster.stage import Stage, _free_memory
from woolly.errors import StageError
from woolly.runtime import Gpu, Stages
from woolly.runtime.gpu.memory_requirements import RESERVE
from woolly.runtime.pipeline import stage_client as places

PROMPTS = ["the sheep and the", "rivers in the and", "the sheep and the shepherd" * 6]
PARAMS = [
    SamplingParams(seed=1, temperature=0.8, max_tokens=24, ignore_eos=True),
    SamplingParams(seed=2, temperature=1.2, max_tokens=24, ignore_eos=True, repeat_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(Tiny("five", "llama", n_layers=5, tied=False), tmp_path_factory.mktemp("model") / "five.gguf")


@contextmanager
def over(stages, path, folder, **options):
    """The model over stages that were started."""
    given = {"ctx": 256, "stages": stages, "stage_token_file": token_file(folder)}
    with LLM(path, **(given | options)) as llm:
        yield llm


def texts(llm, **options):
    return [one.text for one in llm.generate(PROMPTS, PARAMS, **options)]


def alone(path, **options):
    with LLM(path, **({"ctx": 256, "threads": 1} | options)) as llm:
        return texts(llm)


@pytest.mark.parametrize("n", [2, 5])
def test_concurrent_requests_in_stages_give_the_text_of_one_process(model, tmp_path, n):
    with on_threads(model, n) as stages, over(names(stages), model, tmp_path) as llm:
        assert texts(llm) == alone(model)
        found = [layers for _, *layers in llm.engine.program.layers]
        assert found[0][0] == 0 and found[-1][1] == 4 and len(found) == n


@pytest.mark.parametrize("name", ["qwen35", "gemma3"])
def test_recurrent_and_windowed_models_give_the_text_of_one_process(name, tmp_path):
    path = write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")
    options = {"kv_tokens": 512, "max_running": 2, "chunk": 16}
    with on_threads(path, 2) as stages, over(names(stages), path, tmp_path, **options) as llm:
        assert texts(llm) == alone(path, **options)


def test_prefixes_are_reused_and_drafts_change_nothing(model, tmp_path):
    with on_threads(model, 2) as stages, over(names(stages), model, tmp_path, speculation="prompt_lookup") as llm:
        want = alone(model)
        assert texts(llm) == want
        n_hits = llm.prefix_stats().hit_tokens
        assert texts(llm) == want
        assert llm.prefix_stats().hit_tokens > n_hits
    with on_threads(model, 2) as stages, over(names(stages), model, tmp_path, speculation=str(model)) as llm:
        assert texts(llm) == want


def test_values_logits_and_identity_equal_those_of_one_process(model, tmp_path):
    ids = list(range(5, 75))
    with on_threads(model, 2) as stages, over(names(stages), model, tmp_path) as llm, LLM(model, ctx=256) as one:
        np.testing.assert_array_equal(llm.logits(ids), one.logits(ids))
        for step in ("blk.0", "blk.2", "blk.4", "output_norm"):
            np.testing.assert_array_equal(llm.hidden(ids, step), one.hidden(ids, step))
        np.testing.assert_array_equal(llm.embed("sheep", pooling="mean"), one.embed("sheep", pooling="mean"))
        assert llm.identity() == one.identity()
        assert llm.engine.state.page_bytes == one.engine.state.page_bytes
        assert llm.engine.program.weight_stats().n_bytes == one.engine.program.weight_stats().n_bytes
        seen = []
        llm.generate("the", max_tokens=1, hooks={"blk.1": lambda positions, values: seen.append(values.shape)})
        assert seen == [(1, 64)]
        with llm.engine.program.timed() as times:
            llm.logits(ids)
        assert len(times) == len(llm.engine.program.running_plan.steps) and sum(times) > 0


def test_answer_can_be_cancelled_and_the_others_continue(model, tmp_path):
    with on_threads(model, 2) as stages, over(names(stages), model, tmp_path) as llm:
        stream = llm.generate("the sheep", max_tokens=200, ignore_eos=True, stream=True)
        next(iter(stream))
        stream.close()
        assert texts(llm) == alone(model)


def test_stage_killed_during_an_answer_loses_no_answer(model, tmp_path):
    token = token_file(tmp_path)
    victim = Process(model, token)
    try:
        with on_threads(model, 1) as others, over([*names(others), victim.name], model, tmp_path) as llm:
            is_running, is_killed, calls = threading.Event(), threading.Event(), []

            def hold(positions, values):
                """Holds the step in which the seventh token comes until the stage is gone."""
                calls.append(positions)
                if len(calls) == 7:
                    is_running.set()
                    is_killed.wait(60)

            answers = []
            asker = threading.Thread(
                target=lambda: answers.extend(llm.generate(PROMPTS, PARAMS, hooks={"blk.0": hold}))
            )
            asker.start()
            assert is_running.wait(60)
            victim.kill()
            victim = Process(model, token, victim.name)
            is_killed.set()
            asker.join()
            assert [answer.text for answer in answers] == alone(model)
            assert llm.engine.scheduler.n_preemptions == len(PROMPTS)
            assert texts(llm) == [answer.text for answer in answers]
    finally:
        victim.kill()


def test_another_stage_replaces_a_lost_one(model, tmp_path):
    with on_threads(model, 3) as stages:
        first, second, spare = names(stages)
        with over([first, f"{second}|{spare}"], model, tmp_path) as llm:
            want = texts(llm)
            stages[1].close()
            assert texts(llm) == want == alone(model)
            assert llm.engine.program.layers[1][0] == f"stage {spare}"
            ids = list(range(40))
            np.testing.assert_array_equal(llm.logits(ids), llm.logits(ids))


@pytest.mark.parametrize("reader", ["logits", "embed"])
def test_embeddings_restart_after_a_lost_stage(model, tmp_path, reader):
    with on_threads(model, 3) as stages:
        first, second, spare = names(stages)
        with over([first, f"{second}|{spare}"], model, tmp_path, chunk=32) as llm:
            ask = {
                "logits": lambda: llm.logits(list(range(100))),
                "embed": lambda: llm.embed("ab" * 50, pooling="mean"),
            }
            want = ask[reader]()
            stages[1].close()
            np.testing.assert_array_equal(ask[reader](), want)


def test_missing_stage_ends_answers_with_its_name_and_later_ones_work(model, tmp_path, monkeypatch):
    with on_threads(model, 2) as stages:
        listed = names(stages)
        parsed = Stages.parse(listed, token_file(tmp_path))
        monkeypatch.setattr(Stages, "parse", lambda *_: Stages(parsed.places, TOKEN, patience=0.0))
        with over(listed, model, tmp_path) as llm:
            want = texts(llm)
            stages[1].close()
            with pytest.raises(StageError, match=f"stage {listed[1]} cannot be reached"):
                llm.generate("the", max_tokens=2)
            host, _, port = listed[1].partition(":")
            with on_threads(model, 1, host=host, port=int(port)):
                assert texts(llm) == want


def test_llm_that_waits_for_a_stage_can_be_closed(model, tmp_path):
    with on_threads(model, 2) as stages, over(names(stages), model, tmp_path) as llm:
        stages[1].close()
        stream = llm.generate("the", max_tokens=5, stream=True)
        got = []
        reader = threading.Thread(target=lambda: got.extend(stream))
        reader.start()
        wait_for(lambda: llm.engine.scheduler.running)
        llm.close()
        reader.join()


def test_different_model_token_or_arithmetic_is_rejected(model, tmp_path, monkeypatch):
    other = write_tiny(Tiny("other", "llama", n_layers=5, tied=False), tmp_path / "other.gguf")
    with (
        on_threads(other, 1) as stages,
        pytest.raises(StageError, match=r"has other\.gguf, which differs from"),
    ):
        LLM(model, stages=names(stages), stage_token_file=token_file(tmp_path))
    with on_threads(model, 1) as stages:
        wrong = tmp_path / "wrong"
        wrong.write_bytes(b"another token, long enough")
        wrong.chmod(0o600)
        with pytest.raises(StageError, match="the peer has a different token"):
            LLM(model, stages=names(stages), stage_token_file=wrong)
        monkeypatch.setattr("woolly.cluster.stage.ARITHMETIC_VERSION", 0)
        with pytest.raises(StageError, match="has arithmetic 0, but the engine has"):
            LLM(model, stages=names(stages), stage_token_file=token_file(tmp_path))


def test_stage_keeps_the_device_it_was_started_with(model, tmp_path, monkeypatch):
    with on_threads(model, 1, device="cpu") as stages, over(names(stages), model, tmp_path) as llm:
        assert len(llm.generate("the", max_tokens=2, ignore_eos=True).token_ids) == 2
    gpu = Gpu(1, "none", "sm_90", free=3 * RESERVE, total=4 * RESERVE, bandwidth=None)
    gpus = {(number, "cuda"): gpu for number in (0, 1)}
    monkeypatch.setattr("woolly.cluster.stage.find_gpu", lambda number, kind: gpus[number, kind])
    with (
        on_threads(model, 1, device="cuda:0,1") as stages,
        pytest.raises(StageError, match=r"--device cuda:0,1, but .* backend cpu; start the engine with --backend cuda"),
    ):
        LLM(model, stages=names(stages), stage_token_file=token_file(tmp_path))
    assert _free_memory("cuda:0,1") == 4 * RESERVE
    with pytest.raises(RequestError, match="device is 'gpu'"):
        Stage(model, TOKEN, device="gpu")


def test_memory_of_a_stage_counts_as_free_for_the_next_engine(model, tmp_path, monkeypatch):
    monkeypatch.setattr("woolly.cluster.stage.available_memory", lambda: 1000)
    reported, dial = [], places.StageClient.dial

    def dialled(place, go_on):
        dial(place, go_on)
        reported.append(place.memory)

    monkeypatch.setattr(places.StageClient, "dial", dialled)
    with pytest.warns(UserWarning, match="GB of memory left"), on_threads(model, 1) as stages:
        for _ in range(2):
            with over(names(stages), model, tmp_path) as llm:
                llm.generate("the", max_tokens=2, ignore_eos=True)
                held = stages[0]._part.program.weight_stats().n_bytes
    assert reported[0] == 1000 < reported[1] <= 1000 + held


def test_stage_with_different_bits_cannot_join(model, tmp_path, monkeypatch):
    with on_threads(model, 3) as stages:
        first, second, spare = names(stages)
        with over([first, f"{second}|{spare}"], model, tmp_path) as llm:
            monkeypatch.setattr("woolly.cluster.stage._probe", lambda program: "others")
            monkeypatch.setattr(
                type(llm.engine.program), "_keep_trying", lambda self, attempt, is_lost=False: attempt()
            )
            stages[1].close()
            with pytest.raises(StageError, match="computes other bits"):
                llm.generate("the", max_tokens=2)


def test_stage_computes_for_one_process_at_a_time(model, tmp_path, monkeypatch):
    with on_threads(model, 1) as stages, over(names(stages), model, tmp_path) as llm:
        monkeypatch.setattr("woolly.runtime.pipeline.program._AGAIN", 0.01)
        parsed = Stages.parse(names(stages), token_file(tmp_path))
        monkeypatch.setattr(Stages, "parse", lambda *_: Stages(parsed.places, TOKEN, patience=0.1))
        with pytest.raises(StageError, match="in use by another engine"):
            LLM(model, stages=names(stages), stage_token_file=token_file(tmp_path))
        assert texts(llm) == alone(model)


def test_silent_stage_is_lost(model, tmp_path, monkeypatch):
    with on_threads(model, 3) as stages:
        first, second, spare = names(stages)
        with over([first, f"{second}|{spare}"], model, tmp_path) as llm:
            want = texts(llm)
            silent = threading.Event()
            # As if a minute had passed on this connection alone: others may be late on a busy machine.
            connection = llm.engine.program._places[1]._connection
            receive = connection.receive
            monkeypatch.setattr(connection, "receive", lambda wait: receive(lambda silence: wait(silence + 60)))
            session = stages[1]._owner
            monkeypatch.setattr(session, "_answer", lambda message: silent.wait(60) and None)
            monkeypatch.setattr(session, "_beat", lambda silence: None)
            # The stage that is silent still listens; it must not be asked again.
            monkeypatch.setattr(stages[1], "_handle", lambda sock, host: sock.close())
            assert texts(llm) == want
            silent.set()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stages": ["nowhere"]}, "stages has 'nowhere'; expected HOST:PORT"),
        ({"stages": "127.0.0.1:1"}, "stages must be a non-empty list of HOST:PORT"),
        ({"stage_token_file": None}, "stages need stage_token_file"),
        ({"stage_token_file": "absent"}, "absent, which cannot be read"),
        ({"cache_disk": "1GB"}, "cache_disk is not supported with stages"),
        ({"adapters": ["a.gguf"]}, "adapters is not supported with stages"),
        ({"control_vectors": ["a.gguf"]}, "control_vectors is not supported with stages"),
        ({"speculation": "mtp"}, "speculation is 'mtp'"),
    ],
)
def test_unsupported_features_of_stages_are_rejected_by_name(model, tmp_path, options, sentence):
    given = {"stages": ["127.0.0.1:1"], "stage_token_file": token_file(tmp_path)}
    with pytest.raises(RequestError, match=sentence):
        LLM(model, **(given | options))


def test_short_token_is_rejected_and_readable_token_file_gives_a_warning(model, tmp_path):
    file = tmp_path / "token"
    file.write_text("short\n")
    with pytest.raises(RequestError, match="too short; it needs at least 16 characters"):
        LLM(model, stages=["127.0.0.1:1"], stage_token_file=file)
    file.write_bytes(TOKEN)
    file.chmod(0o644)
    with pytest.warns(UserWarning, match="readable by other users"):
        Stages.parse(["127.0.0.1:1"], file)


def test_more_stages_than_layers_are_rejected(model, tmp_path):
    with on_threads(model, 6) as stages, pytest.raises(RequestError, match="6 stages are given"):
        LLM(model, stages=names(stages), stage_token_file=token_file(tmp_path))
