"""llama-server's other routes: tokens, templates, properties, slots, infill."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.serving.dialects.fill_in import fill_in
from woolly.tokens import Tokenizer

HI = [{"role": "user", "content": "hi"}]


def test_tokenize_and_detokenize_round_trip(client):
    text = "the wörld <|im_end|> 媽"
    ids = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert ids == Tokenizer.from_metadata(byte_vocabulary()).encode(text, add_special=False)
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"content": text, "prompt": text}
    plain = client.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert len(plain) > len(ids)


def test_pieces_are_text_or_bytes(client):
    tokens = client.post("/tokenize", json={"content": "the á", "with_pieces": True}).json()["tokens"]
    assert [token["piece"] for token in tokens] == ["the", " ", [195], [161]]


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special"),
        ("/detokenize", {"tokens": [1, 999_999]}, "999999"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/apply-template", {"messages": "hi"}, "messages"),
        ("/apply-template", {"messages": [{"role": "user"}]}, "message"),
        ("/apply-template", {"messages": HI, "chat_template_kwargs": {"mood": 1}}, "mood"),
        ("/apply-template", {"messages": HI, "chat_template_kwargs": {"messages": 1}}, "messages"),
    ],
)
def test_invalid_fields_are_named(client, path, fields, named):
    reply = client.post(path, json=fields)
    assert reply.status_code == 400 and named in reply.json()["error"]["message"], reply.text


def test_apply_template_gives_the_prompt_of_a_chat(client):
    messages = [{"role": "user", "content": "hi"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    asked = {"seed": 5, "max_tokens": 6}
    chat = client.post("/v1/chat/completions", json={"messages": messages, **asked}).json()
    plain = client.post("/completion", json={"prompt": prompt, **asked}).json()
    assert chat["choices"][0]["message"]["content"] == plain["content"]
    bare = client.post("/apply-template", json={"messages": messages, "add_generation_prompt": False}).json()["prompt"]
    assert prompt == bare + "<|im_start|>assistant\n"


def test_props_report_the_defaults_and_load_nothing(app_with):
    with app_with(temp=0.3, n_predict=77, parallel=3) as client:
        props = client.get("/props").json()
        assert client.app.state.models.loaded_models == () and props["is_sleeping"] is True
        params = props["default_generation_settings"]["params"]
        assert params["temperature"] == 0.3 and params["n_predict"] == 77 and props["total_slots"] == 3
        assert props["model_path"] == "tiny.gguf" and props["default_generation_settings"]["n_ctx"] == 512
        reply = client.post("/completion", json={"prompt": "hi", "ignore_eos": True}).json()
        assert reply["tokens_predicted"] == 77
        reported = reply["generation_settings"]
        assert params["logit_bias"] == [] and all(one["bias"] is None for one in reported["logit_bias"])  # ignored ends
        own = {"ignore_eos", "logit_bias"}
        assert {name: reported[name] for name in params.keys() - own} == {
            name: params[name] for name in params.keys() - own
        }
        loaded = client.get("/props").json()
        assert loaded["is_sleeping"] is False and "im_start" in loaded["chat_template"]


def test_slots_show_running_requests(app_with):
    with app_with(parallel=2) as client, client.websocket_connect("/api/v1/ws") as socket:
        assert [slot["is_processing"] for slot in client.get("/slots").json()] == [False, False]
        seen = []
        for _ in range(20):  # a tiny model may be done before it is looked at
            chat = {"type": "chat", "id": "a", "prompt": "hi", "max_tokens": 400, "ignore_eos": True, "top_k": 7}
            socket.send_json(chat)
            assert socket.receive_json()["type"] == "start"
            seen = [slot for slot in client.get("/slots").json() if slot["is_processing"]]
            while socket.receive_json()["type"] != "done":
                pass
            if seen:
                break
        (slot,) = seen
        assert slot["params"]["top_k"] == 7 and slot["n_ctx"] == 512
        (following,) = slot["next_token"]
        assert following["n_decoded"] + following["n_remain"] == 400
        assert client.get("/slots", params={"fail_on_no_slot": 1}).status_code == 200
        assert client.post("/slots/0", params={"action": "erase"}).json()["id_slot"] == 0


def test_slots_can_be_hidden(app_with):
    with app_with(slots=False) as client:
        assert client.get("/slots").status_code == 501


def test_infill_needs_a_model_with_fim_tokens(client):
    reply = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b", "n_predict": 2})
    assert reply.status_code == 400 and "FIM" in reply.json()["error"]["message"]
    reply = client.post("/infill", json={"input_prefix": "a"})
    assert reply.status_code == 400 and "input_suffix" in reply.json()["error"]["message"]


def test_infill_uses_the_fim_tokens_of_the_model():
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
    metadata = byte_vocabulary()
    first = metadata["tokenizer.ggml.tokens"].index("<|im_end|>") + 1
    metadata["tokenizer.ggml.tokens"][first : first + len(names)] = names
    tokenizer = Tokenizer.from_metadata(metadata)
    plain = tokenizer.decode(fill_in(tokenizer, "a<|fim_suffix|>", "b", begin="c"))
    assert plain == "<|fim_prefix|>a<|fim_suffix|><|fim_suffix|>b<|fim_middle|>c"
    ids = fill_in(tokenizer, "a<|fim_suffix|>", "b", begin="c", extra=[("x.py", "x = 1")])
    assert tokenizer.decode(ids) == f"<|repo_name|>myproject\n<|file_sep|>x.py\nx = 1<|file_sep|>filename\n{plain}"
    assert ids.count(first + 1) == 1, "a control token that was written out in a file was taken as one"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/v1/inference/chat"])
@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        ("usr", "message 1 has the role 'usr', which this model does not know; did you mean 'user'?"),
        ("User", "message 1 has the role 'User', which this model does not know; did you mean 'user'?"),
        ("", "does not know; the roles are system, developer, user, assistant, tool"),
        ("function", "messages.0.name: missing; a message with role 'function' needs the name of the function"),
        (None, "messages.0.role: input should be a valid string"),
        (5, "messages.0.role: input should be a valid string"),
    ],
)
def test_unknown_role_is_rejected_with_the_known_ones(client, path, role, sentence):
    reply = client.post(path, json={"messages": [{"role": role, "content": "hi"}]})
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]["message"]


def test_template_is_applied_to_roles_of_any_name(client):
    reply = client.post("/apply-template", json={"messages": [{"role": "critic", "content": "hi"}]})
    assert reply.status_code == 200 and "<|im_start|>critic\nhi" in reply.json()["prompt"]
    assert client.post("/apply-template", json={"messages": [{"role": 5, "content": "hi"}]}).status_code == 400
