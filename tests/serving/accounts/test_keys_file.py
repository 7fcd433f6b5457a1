"""Named keys: the file, and the commands that write it."""

import json
import os
import re

import pytest

from tests.cli.terminal import woolly
from woolly.errors import RequestError
from woolly.serving.accounts.account import Account, KeyLimits
from woolly.serving.accounts.keys_file import add_key, hash_key, read_keys, remove_key
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.settings.configuration import read_settings

HASH = f"sha256:{hash_key('a key').hex()}"
OTHER = f"sha256:{hash_key('another').hex()}"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.toml"


def test_key_is_shown_once_and_only_its_hash_is_stored(file):
    key = add_key(file, "anna", is_admin=True, limits={"tokens_per_day": 5}, models=("team-*", 'odd"name'))
    assert len(key) > 50 and key not in file.read_text()
    (found,) = read_keys(file)
    assert found.digest == hash_key(key)
    assert found.account == Account("anna", "name:anna", True, KeyLimits(tokens_per_day=5), ("team-*", 'odd"name'))
    assert os.name != "posix" or file.stat().st_mode & 0o077 == 0


def test_removing_a_key_keeps_the_rest_of_the_file(file):
    file.write_text("# ours\n[serve]\nport = 1\n")
    add_key(file, "anna", limits={})
    before = file.read_text()
    add_key(file, "ole", limits={})
    remove_key(file, "ole")
    assert file.read_text() == before and "# ours" in before
    with pytest.raises(RequestError, match="no key named 'ole'"):
        remove_key(file, "ole")
    with pytest.raises(RequestError, match="has a key named 'anna'"):
        add_key(file, "anna", limits={})


TABLES = f'''[keys.anna]
hash = "{HASH}"
  [models.long]  # indented, and of somebody else
  from = "smollm2"
[keys.bob]
hash = "{OTHER}"
'''


def test_removing_a_key_removes_no_other_table(file):
    file.write_text(TABLES)
    remove_key(file, "anna")
    assert file.read_text() == TABLES[TABLES.index("  [models") :]


@pytest.mark.parametrize(
    "text",
    [
        f'keys = {{anna = {{hash = "{HASH}"}}}}\n',
        f'keys.anna.hash = "{HASH}"\n',
        f'[keys.anna]\nhash = "{HASH}"\nmodels = [\n"a",\n]\n[serve]\ntitle = """\n[keys.anna]\n[keys]\n"""\n',
    ],
)
def test_manual_settings_are_kept(file, text):
    """A file in which a line does not say what it seems to say is left as it was, and stays TOML."""
    file.write_text(text)
    with pytest.raises(RequestError, match="cannot edit the format"):
        remove_key(file, "anna")
    assert file.read_text() == text
    if text.startswith("keys = "):
        with pytest.raises(RequestError, match=r"cannot edit the format of .*; add \[keys.bob\] manually"):
            add_key(file, "bob", limits={})
        assert file.read_text() == text


def test_model_name_may_have_any_character(file):
    names = ("two\nlines", 'quo"te', "back\\slash", "\x7f\x00\t", "\U0001f411", "\u2028")
    add_key(file, "anna", limits={}, models=names)
    add_key(file, "bob", limits={})
    remove_key(file, "bob")
    assert [key.account.models for key in read_keys(file)] == [names]


@pytest.mark.skipif(os.name != "posix", reason="owners are those of POSIX")
@pytest.mark.parametrize("may", [True, False])
def test_file_keeps_its_owner_if_possible(file, monkeypatch, may):
    add_key(file, "anna", limits={})
    given = []

    def chown(path, user, group):
        given.append((user, group))
        if not may:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    before = file.stat()
    add_key(file, "bob", limits={})
    assert given == [(before.st_uid, before.st_gid)] and len(read_keys(file)) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[keys.anna]\n", "hash must be sha256:"),
        ('[keys.anna]\nhash = "secret"\n', "hash must be sha256:"),
        (f'[keys."a b"]\nhash = "{HASH}"\n', "a name has at most 64 letters"),
        (f'[keys.anna]\nhash = "{HASH}"\nadmin = 1\n', "admin is 1; expected true or false"),
        (
            f'[keys.anna]\nhash = "{HASH}"\ntokens_per_day = 0\n',
            "tokens_per_day is 0; expected an integer of at least 1",
        ),
        (f'[keys.anna]\nhash = "{HASH}"\ntokens_per_day = "2M"\n', "tokens_per_day is '2M'"),
        (f'[keys.anna]\nhash = "{HASH}"\nrpm = 5\n', "unknown field rpm in "),
        (f'[keys.anna]\nhash = "{HASH}"\nmodels = []\n', "models is []; expected a list of names"),
        (f'[keys.anna]\nhash = "{HASH}"\n[keys.ole]\nhash = "{HASH}"\n', "anna and ole have the same key"),
        ("[keys\n", "is not valid TOML"),
        ("a = " + "[" * 3000, "is not a "),  # nested too deeply for Python's reader
        ("keys = 1\n", "keys is not a table"),
        ("", "has no key, so no client could connect"),
        (None, "cannot be read: No such file"),
    ],
)
def test_invalid_file_is_rejected_before_a_server_starts(file, text, says):
    if text is not None:
        file.write_text(text)
    with pytest.raises(RequestError, match=re.escape(says)):
        read_settings({"keys_file": file}, {})


def test_keys_may_be_in_the_settings_file(tmp_path):
    file = tmp_path / "woolly.toml"
    file.write_text(f'[serve]\nport = 1\n[keys.anna]\nhash = "{HASH}"\n')
    settings = read_settings({"config": file}, {})
    assert settings.has_keys and [key.account.name for key in settings.named_keys] == ["anna"]
    assert settings.usage_path is not None and settings.port == 1


def test_named_and_plain_keys_work_together(file):
    key = add_key(file, "anna", is_admin=True, limits={})
    authenticator = Authenticator(("plain",), None, 60, (), read_keys(file))
    anna, plain = authenticator.identify(key), authenticator.identify("plain")
    assert (anna.name, anna.owner, anna.is_admin) == ("anna", "name:anna", True)
    assert not plain.is_admin and plain.account.limits == KeyLimits() and authenticator.has_admins
    token, _ = authenticator.issue("ole", key)
    assert authenticator.identify(token).account == anna.account == authenticator.account_of("name:anna user:ole")
    assert authenticator.identify(hash_key(key).hex()) is None
    authenticator.set_keys(("plain",), (), ())
    assert authenticator.identify(key) is authenticator.identify(token) is authenticator.account_of("name:anna") is None


def test_keys_command_adds_lists_and_removes(file):
    where = ("--keys-file", file)
    key = woolly("keys", "add", "anna", "--tokens-per-day", 5, "--models", "a, b", *where).strip()
    assert [one.digest for one in read_keys(file)] == [hash_key(key)]
    assert "anna" in woolly("keys", *where) and key not in woolly("keys", "list", *where)
    (shown,) = json.loads(woolly("keys", "list", "--json", *where))["keys"]
    assert (shown["tokens_per_day"], shown["requests_per_day"], shown["models"]) == (5, None, ["a", "b"])
    assert "anna removed" in woolly("keys", "remove", "anna", *where)
    assert read_keys(file) == ()
    with pytest.raises(RequestError, match="requests_per_day is 0"):
        woolly("keys", "add", "anna", "--requests-per-day", 0, *where)


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"the folder .*file cannot be used \(File exists\); choose another file"):
        add_key(tmp_path / "file" / "keys.toml", "anna", limits={})
