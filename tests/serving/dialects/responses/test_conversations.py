"""The store of conversations: its bounds, its owners, and ids and bodies that are meant to break it."""

import pytest

from woolly.serving.dialects.responses.conversations import ConversationStore, new_items
from woolly.serving.errors import ApiError

ROUTE = "/v1/conversations"


def said(*texts):
    return new_items([{"role": "user", "content": text} for text in texts])


def test_owner_cannot_evict_conversations_of_another():
    store = ConversationStore(most=5)
    mine = store.create("me", said("a"), {})
    theirs = [store.create("you", said("b"), {}) for _ in range(20)]
    assert store.get("me", mine.id) is mine and len(store) == 5
    with pytest.raises(ApiError, match="evicted"):
        store.get("you", theirs[0].id)


def test_all_bytes_of_a_conversation_count():
    store = ConversationStore(max_bytes=100_000, max_conversation_bytes=60_000)
    one = store.create("me", said("a"), {"k": "v"})
    before = store.n_bytes
    item = said("x" * 50_000)[0]
    store.add("me", one.id, [item])
    assert store.n_bytes > before + 50_000
    with pytest.raises(ApiError) as caught:
        store.add("me", one.id, said("x" * 10_000))
    assert caught.value.status == 413 and len(one.items) == 2
    store.remove("me", one.id, item["id"])
    assert store.n_bytes == before
    store.update("me", one.id, {})
    store.delete("me", one.id)
    assert store.n_bytes == len(store) == 0
    for _ in range(4):
        store.create("me", said("x" * 40_000), {})
    assert store.n_bytes <= 100_000 and len(store) == 2


def test_too_many_items_are_rejected():
    store = ConversationStore()
    with pytest.raises(ApiError, match="items"):
        store.create("me", said(*["a"] * 10_001), {})


def test_answer_with_taken_ids_is_added_completely():
    store = ConversationStore()
    one = store.create("me", [], {})
    item = said("a")[0]
    store.add("me", one.id, [item])
    store.settle("me", one.id, [item])
    assert len(one.items) == 2
    store.delete("me", one.id)
    store.settle("me", one.id, [item])  # nobody sees it
    assert len(store) == 0


def test_clients_do_not_see_each_other(app_with):
    with app_with(api_key=("one", "two")) as client:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        made = client.post(ROUTE, json={"items": [{"role": "user", "content": "secret"}]}, headers=one).json()
        at = f"{ROUTE}/{made['id']}"
        item = client.get(f"{at}/items", headers=one).json()["data"][0]["id"]
        more = {"items": [{"role": "user", "content": "x"}]}
        body = {"model": "tiny", "input": "hi", "max_output_tokens": 1}
        for method, path, sent in (
            ("GET", at, None),
            ("POST", at, {"metadata": {}}),
            ("DELETE", at, None),
            ("GET", f"{at}/items", None),
            ("POST", f"{at}/items", more),
            ("GET", f"{at}/items/{item}", None),
            ("DELETE", f"{at}/items/{item}", None),
            ("POST", "/v1/responses", {**body, "conversation": made["id"]}),
            ("POST", "/v1/responses/input_tokens", {**body, "conversation": made["id"]}),
        ):
            reply = client.request(method, path, json=sent, headers=two)
            assert reply.status_code == 404 and "secret" not in reply.text, path
        own = client.post(ROUTE, json={}, headers=two).json()["id"]
        refers = {"items": [{"type": "item_reference", "id": item}]}
        assert client.post(f"{ROUTE}/{own}/items", json=refers, headers=two).status_code == 400
        assert client.get(f"{at}/items", headers=one).json()["data"][0]["content"][0]["text"] == "secret"


@pytest.mark.parametrize("id", ["../x", "conv_%00", "%2e%2e%2f", "conv_" + "a" * 5000, "\N{SHEEP}", "items"])
def test_hostile_ids_are_not_found(client, id):
    for method, path in (("GET", f"{ROUTE}/{id}"), ("DELETE", f"{ROUTE}/{id}"), ("GET", f"{ROUTE}/{id}/items/{id}")):
        reply = client.request(method, path)
        assert reply.status_code == 404 and len(reply.text) < 1000


@pytest.mark.parametrize(
    "body",
    [
        {"items": 5},
        {"items": [5]},
        {"items": [{}]},
        {"items": [{"role": "nobody", "content": "x"}]},
        {"items": [{"role": "user", "content": {"a": 1}}]},
        {"items": [{"type": "reasoning", "summary": True}]},
        {"items": [{"type": ["message"], "content": "x"}]},
        {"items": [{"type": "item_reference", "id": "gone"}]},
        {"items": [{"type": "compaction_trigger"}]},
        {"items": [{"id": "a", "role": "user", "content": "x"}, {"id": "a", "role": "user", "content": "y"}]},
        {"metadata": {"a": "x" * 513}},
        {"metadata": {str(i): "x" for i in range(17)}},
        {"metadata": {"a": 1}},
        [],
        "x",
    ],
)
def test_unreadable_bodies_are_rejected_and_nothing_is_stored(client, body):
    reply = client.post(ROUTE, json=body)
    assert reply.status_code == 400 and reply.json()["error"]["message"]
    assert len(getattr(client.app.state, "conversations", ())) == 0


def test_non_string_ids_are_replaced(client):
    items = [{"id": id, "role": "user", "content": "x"} for id in (5, None, "", ["a"], {"b": 1})]
    made = client.post(ROUTE, json={"items": items}).json()["id"]
    listed = client.get(f"{ROUTE}/{made}/items?limit=100").json()["data"]
    assert len({item["id"] for item in listed}) == 5 and all(item["id"].startswith("msg_") for item in listed)


def test_body_is_optional(client):
    assert client.post(ROUTE).json()["object"] == "conversation"


def test_page_size_is_limited(client):
    made = client.post(ROUTE, json={}).json()["id"]
    for query in ("limit=0", "limit=101", "order=up", "after=" + "a" * 300):
        assert client.get(f"{ROUTE}/{made}/items?{query}").status_code == 400
    assert client.get(f"{ROUTE}/{made}/items?after=gone").json()["data"] == []
