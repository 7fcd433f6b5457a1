"""The library in notebooks and worker processes: progress, short errors, NumPy prompts, copies."""

import copy
import pickle

import numpy as np
import pytest

from woolly import LLM, RequestError, Tokenizer, TokenizerError
from woolly.errors import CallbackError


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, ctx=256, threads=1) as llm:
        yield llm


def test_progress_in_a_notebook_is_one_line_of_text(llm, capsys, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    llm.generate(["a", "b", "c"], max_tokens=2, ignore_eos=True, progress=True)
    shown = capsys.readouterr()
    assert shown.err.startswith("\r") and " 3/3 " in shown.err and shown.err.endswith(" tokens/s\n")
    assert not shown.out and "\x1b" not in shown.err


def test_an_error_in_a_notebook_shows_only_the_lines_of_the_user(llm):
    with pytest.raises(RequestError) as caught:
        llm.generate("a", max_tokens=-5)
    shown = "".join(caught.value._render_traceback_())
    assert "llm.generate" in shown and "test_notebooks.py" in shown and "requests.py" not in shown
    assert shown.endswith(f"RequestError: {caught.value}")


def test_a_failed_callback_shows_its_cause():
    try:
        raise CallbackError("a hook failed") from ZeroDivisionError("of the user")
    except CallbackError as error:
        assert "ZeroDivisionError: of the user" in "".join(error._render_traceback_())


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_a_prompt_may_be_an_array_of_ids(dtype, llm):
    ids = np.array([5, 9, 200], dtype)
    wanted = llm.generate([5, 9, 200], max_tokens=3, temperature=0).token_ids
    assert llm.generate(ids, max_tokens=3, temperature=0).token_ids == wanted
    both = llm.generate([ids, [5, 9, 200]], max_tokens=3, temperature=0)
    assert [one.token_ids for one in both] == [wanted, wanted]
    assert llm.score(ids).logprobs == llm.score([5, 9, 200]).logprobs


@pytest.mark.parametrize("prompt", [np.zeros((2, 3), np.int64), np.zeros(3, np.float32)])
def test_other_arrays_are_rejected_by_shape_and_type(prompt, llm):
    with pytest.raises(RequestError, match=rf"an array of {prompt.dtype} with shape .* expected whole numbers in one"):
        llm.generate(prompt)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied(make, llm):
    with pytest.raises(TypeError, match="cannot be pickled or copied; open the model in each process"):
        make(llm)


def test_a_tokenizer_of_a_file_can_be_pickled(tiny_model, llm):
    tokenizer = Tokenizer.from_gguf(tiny_model)
    other = pickle.loads(pickle.dumps(tokenizer))
    assert other.encode("hello") == tokenizer.encode("hello")
    with pytest.raises(TokenizerError, match=r"Tokenizer\.from_gguf"):
        pickle.dumps(llm.tokenizer)
