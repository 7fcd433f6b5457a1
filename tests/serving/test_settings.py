"""Settings: one table, four sources, one precedence."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner

from docs.tools.settings import reference
from woolly import RequestError
from woolly.cli.app import app
from woolly.cli.parse.flags.table import FOREIGN_FLAGS
from woolly.cli.parse.translation import translated
from woolly.errors import StoreError
from woolly.llm.model_options import rows_of
from woolly.serving import Settings, read_settings
from woolly.serving.settings.sampling_settings import SAMPLING_ROWS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_override_environment_file_and_defaults(folder):
    (folder / "woolly.toml").write_text("[serve]\nport = 1\nparallel = 2\ntop-k = 3\n")
    environment = {"WOOLLY_PORT": "10", "WOOLLY_PARALLEL": "20"}
    settings = read_settings({"port": 100}, environment)
    assert (settings.port, settings.parallel, settings.top_k, settings.draft_max) == (100, 20, 3, 8)


def test_file_may_be_named_and_must_then_exist(folder):
    (folder / "other.toml").write_text('[serve]\npreload = ["a", "b"]\ntimeout = 5\n')
    assert read_settings({"config": folder / "other.toml"}, {}).preload == ("a", "b")
    assert read_settings({}, {"WOOLLY_CONFIG": str(folder / "other.toml")}).timeout == 5.0
    with pytest.raises(RequestError, match="cannot be read"):
        read_settings({"config": folder / "missing.toml"}, {})


def test_gpu_layers_in_the_file_are_a_number_or_text(folder):
    for value, read in (("7", 7), ('"7"', "7"), ('"all"', "all")):
        (folder / "woolly.toml").write_text(f"[serve]\ngpu_layers = {value}\n")
        assert read_settings({}, {}).gpu_layers == read
    assert read_settings({}, {"WOOLLY_GPU_LAYERS": "7"}).gpu_layers == "7"


def test_lists_are_comma_separated_or_repeated(folder):
    assert read_settings({"api_key": ["a,b", "c"]}, {}).keys == ("a", "b", "c")
    assert read_settings({}, {"WOOLLY_API_KEY": "x, y"}).keys == ("x", "y")


def test_keys_of_the_file_are_added_and_comments_ignored(folder):
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text("# for the team\none\n\n  two \n")
    assert read_settings({"api_key": ["zero"], "api_key_file": folder / "keys"}, {}).keys == ("zero", "one", "two")


def test_tilde_is_the_home_folder_in_every_source(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    (folder / "models").mkdir()
    (folder / "woolly.toml").write_text('[serve]\nmodel = "~/a.gguf"\nmodels-dir = "~/models"\nlora = ["~/b", "c"]\n')
    settings = read_settings({"config": Path("~/woolly.toml")}, {})
    assert (settings.model, settings.models_dir) == (str(folder / "a.gguf"), folder / "models")
    assert settings.lora == (str(folder / "b"), "c")
    flags, variables = (
        {"model": "~/x.gguf", "log_file": Path("~/log")},
        {"WOOLLY_LORA_SCALED": "~/b:0.5,~nobody-here/c:1"},
    )
    settings = read_settings(flags, variables)
    assert (settings.model, settings.log_file) == (str(folder / "x.gguf"), folder / "log")
    assert settings.lora_scaled == (f"{folder / 'b'}:0.5", "~nobody-here/c:1")


def test_misspelt_variable_gives_a_warning(folder, caplog):
    others = {
        "WOOLLY_HOME": "x",
        "WOOLLY_ISA": "avx2",
        "WOOLLY_TEST_VOCABS": "x",
        "WOOLLY_PORT": "9",
        "OTHER_PORT": "1",
    }
    read_settings({}, others)
    assert not caplog.records
    assert read_settings({}, {"WOOLLY_PROT": "8081"}).port == Settings().port
    assert caplog.messages == ["unknown environment variable WOOLLY_PROT: did you mean WOOLLY_PORT?"]


@pytest.mark.parametrize(
    ("flags", "environment", "file", "says"),
    [
        ({}, {"WOOLLY_PORT": "many"}, "", "WOOLLY_PORT is 'many'; expected an integer"),
        ({}, {"WOOLLY_METRICS": "maybe"}, "", "true or false"),
        ({}, {}, "[serve]\nprot = 1\n", "unknown setting prot in [serve]: did you mean port?"),
        ({}, {}, "[serve]\nwool = 1\n", "unknown setting wool in [serve]: `woolly serve --help` lists them"),
        (
            {},
            {},
            "max-queue = 1\n",
            "woolly.toml: max-queue has no effect outside a table: write it below a line [serve]",
        ),
        (
            {},
            {},
            'modle = "x"\n',
            "modle has no effect outside a table: did you mean model? Write it below a line [serve]",
        ),
        ({}, {}, "[server]\nport = 1\n", "[server] has no effect: did you mean [serve]?"),
        ({}, {}, '[serve]\nport = "1"\n', "a value of type int"),
        ({}, {}, "[serve]\ngpu_layers = true\n", "gpu_layers is True; expected a value of type int or str"),
        ({}, {}, "[serve\n", "is not valid TOML"),
        ({"port": 70000}, {}, "", "at most 65535"),
        ({"parallel": 0}, {}, "", "at least 1"),
        ({"timeout": float("inf")}, {}, "", "timeout is inf"),
        ({"cache_type_k": "q4_0"}, {}, "", "cache_type_k is 'q4_0'; choose one of"),
        ({"cache_type_v": "q8_0/q4"}, {}, "", "cache_type_v is 'q8_0/q4'; choose one of"),
        ({"cache_type_k": "q8_0/q4", "cache_type_v": "f16"}, {}, "", "names both types"),
        ({"cache_type_k": "q8_0", "optimized_inference": False}, {}, "", "reference backend"),
        ({"log_format": "xml"}, {}, "", "text, json"),
        ({"chat_template": "{{ x }}", "chat_template_file": Path("y")}, {}, "", "cannot be combined"),
        ({"chat_template": "chatlm"}, {}, "", "chat_template is 'chatlm', which has no placeholders"),
        ({"token_secret": "short"}, {}, "", "at least 32 characters"),
        ({"api_key": ["a b"]}, {}, "", "not allowed in a header"),
        ({"api_key_file": Path("missing")}, {}, "", "cannot be read"),
        ({"max_body": "much"}, {}, "", "expected bytes"),
        ({"gpu_layers": "many"}, {}, "", "gpu_layers is 'many'; expected auto, all or an integer of at least 0"),
        ({"max_bodies": "much"}, {}, "", "expected bytes"),
        ({"max_bodies": "1MB"}, {}, "", "max_bodies is 1MB; expected at least max_body, which is 16MiB"),
        ({"max_session_size": "-1"}, {}, "", "max_session_size"),
        ({"max_sessions": 0}, {}, "", "max_sessions is 0; expected at least 1"),
        ({"top_p": 2.0}, {}, "", "top_p is 2.0"),
    ],
)
def test_invalid_settings_are_rejected_by_name(folder, flags, environment, file, says):
    (folder / "woolly.toml").write_text(file)
    with pytest.raises(RequestError, match=re.escape(says)):
        read_settings(flags, environment)


def test_other_tables_may_be_in_the_file(folder):
    (folder / "woolly.toml").write_text('title = "ours"\nversion = 3\n[tool.other]\nport = 9\n[serve]\nport = 1\n')
    assert read_settings({}, {}).port == 1


def test_secrets_may_be_in_files(folder):
    for name in ("admins", "secret"):
        (folder / name).touch(0o600)
    (folder / "admins").write_text("# who may load\nboss\n")
    (folder / "secret").write_text("s" * 32 + "\n")
    given = {"api_key": ["one"], "admin_key": ["chief"], "admin_key_file": folder / "admins"}
    settings = read_settings({**given, "token_secret_file": folder / "secret"}, {})
    assert (settings.keys, settings.admin_keys) == (("one", "chief", "boss"), ("chief", "boss"))
    assert settings.signing_secret == "s" * 32
    (folder / "secret").write_text("short")
    with pytest.raises(RequestError, match="token_secret_file is short enough to guess"):
        read_settings({"token_secret_file": folder / "secret"}, {})
    with pytest.raises(RequestError, match="token_secret and token_secret_file cannot be combined"):
        read_settings({"token_secret_file": folder / "secret", "token_secret": "s" * 32}, {})
    (folder / "admins").write_text("# nobody\n")
    with pytest.raises(RequestError, match="admin_key_file has no key"):
        read_settings({"admin_key_file": folder / "admins", "api_key": ["one"]}, {})


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
@pytest.mark.parametrize("name", ["api_key_file", "admin_key_file", "token_secret_file", "cluster_secret_file"])
def test_world_readable_secret_file_gives_a_warning(folder, name):
    (folder / "open").write_text("s" * 32 + "\n")
    (folder / "open").chmod(0o644)
    with pytest.warns(UserWarning, match=r"other users can read the secret in .*open; run chmod 600"):
        read_settings({name: folder / "open"}, {})


def test_empty_key_file_admits_nobody(folder):
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text("\n# none yet\n")
    with pytest.raises(RequestError, match="has no key"):
        read_settings({"api_key_file": folder / "keys"}, {})


@pytest.mark.parametrize("name", ["api_key", "admin_key", "keys_file", "oidc_issuer"])
def test_empty_guard_setting_is_rejected(folder, name):
    variable = f"WOOLLY_{name.upper()}"
    for empty in ("", " ", ","):
        with pytest.raises(RequestError, match=f"{variable} is empty .*, or unset it"):
            read_settings({}, {variable: empty})
    (folder / "woolly.toml").write_text(f'[serve]\n{name} = ""\n')
    with pytest.raises(RequestError, match=f"{name} is empty .*, or remove it"):
        read_settings({}, {})


def test_empty_key_is_rejected_unless_a_flag_gives_one(folder):
    error = CliRunner().invoke(app, ["serve", "--api-key", ""]).exception
    assert isinstance(error, RequestError) and "--api-key is empty and would allow all clients" in str(error)
    assert read_settings({"api_key": ["one"]}, {"WOOLLY_API_KEY": ""}).keys == ("one",)
    (folder / "woolly.toml").write_text("[serve]\napi_key = []\n")
    assert not read_settings({}, {"WOOLLY_PORT": ""}).has_keys


def test_every_setting_is_used():
    files = [path for room in ("serving", "cluster") for path in (ROOT / "woolly" / room).rglob("*.py")]
    source = "".join(path.read_text() for path in files if path.name != "configuration.py")
    # The options of a model are read together, row by row; tests/llm/test_add_option.py asks for their use.
    by_row = {row.setting_name for row in rows_of().values() if row.setting is not None}
    names = {setting.name for setting in fields(Settings)} - by_row - SAMPLING_ROWS.keys()  # read together, too
    assert not [name for name in names if not re.search(rf"(settings|self)\.{name}\b", source)]


def test_every_setting_is_a_flag():
    help_text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).output
    for setting in fields(Settings):
        for flag in setting.metadata["flags"]:
            for spelling in flag.split("/"):
                assert spelling in help_text, setting.name


def test_help_has_a_panel_for_each_table_of_the_reference_in_order():
    invoked = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    panels = re.findall(r"^╭─ (.+?) ─", invoked.output, re.MULTILINE)
    tables = re.findall(r"^## (.+)$", reference(), re.MULTILINE)
    assert panels == ["Arguments", "Common options", *tables] and len(panels) >= 6


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--mmproj-url x", "woolly pull"), ("--yarn-beta-fast 32", "with --override-kv"),
        ("--grp-attn-n 4", "GGUF file"), ("--tools all", "no built-in tools"), ("--rpc host:1", "RPC"),
    ],
)  # fmt: skip
def test_llama_server_flag_that_changes_answers_gives_a_one_line_error(folder, flags, says):
    error = CliRunner().invoke(app, ["serve", *flags.split()]).exception
    assert isinstance(error, RequestError) and flags.split()[0] in str(error)
    assert says in str(error) and str(error).endswith("; omit it")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("-sm row", "free memory"), ("-fa off", "always used"),
        ("-nocb", "always on"), ("--no-cont-batching", "always on"), ("--mlock", "not locked"),
        ("--no-mmap", "mapped"), ("--numa distribute", "numactl"), ("-ts 3,1", "free memory"), ("-nr", "packed"),
        ("--no-repack", "packed"), ("--no-jinja", "Jinja"), ("-tb 4", "--threads"), ("--threads-http 4", "event loop"),
        ("--cache-reuse 256", "recomputed"), ("--cache-ram 100", "--kv-tokens"), ("-sps 0.5", "longest cached prefix"),
    ],
)  # fmt: skip
def test_llama_server_flag_without_effect_on_answers_gives_a_notice(folder, flags, says):
    result = CliRunner().invoke(app, ["serve", *flags.split(), "-m", "missing.gguf"])
    assert isinstance(result.exception, StoreError) and "missing.gguf" in str(result.exception)
    (notice,) = result.stderr.splitlines()
    assert notice.startswith(f"woolly: {flags} has no effect: ") and says in notice


@pytest.mark.parametrize(
    ("line", "setting", "value"),
    [
        ("--no-mmproj", "mmproj", "none"), ("--rope-freq-scale 0.5", "rope_scale", 2.0),
        ("-dev CUDA0", "device", "cuda:0"), ("-dev none", "device", "cpu"),
        ("-dev CUDA0,CUDA1", "device", "cuda:0,1"), ("-dev Vulkan1", "device", "vulkan:1"),
        ("-ctk q4_0", "cache_type_k", "q4"), ("-ctv q4_0", "cache_type_v", "q4"), ("-ngl -1", "gpu_layers", "auto"),
        ("--spec-type draft-mtp", "model_draft", "mtp"), ("--spec-type ngram-mod", "model_draft", "prompt_lookup"),
        ("--spec-type draft-mtp,ngram-mod", "model_draft", "mtp_lookup"), ("--spec-type none", "model_draft", "none"),
        ("--spec-type draft-simple -md x.gguf", "model_draft", "x.gguf"), ("-lv 5", "log_level", "debug"),
        ("--spec-type ngram-mod -md x.gguf", "model_draft", "x.gguf"), ("--log-disable", "log_level", "off"),
        ("--max-model-len 32k", "ctx_size", 32000), ("--max-num-seqs 8", "parallel", "8"),
        ("--served-model-name a", "alias", ("a",)), ("--keepalive 5", "keep_alive", 5.0), ("-cmoe", "n_cpu_moe", "all"),
        ("-ncmoe 3", "n_cpu_moe", "3"), ("-ot .ffn_.*_exps.=CPU", "n_cpu_moe", "all"),
        ("--fim-qwen-7b-default", "port", 8012), ("--sampler-seq kpt", "samplers", "top_k;top_p;temperature"),
    ],
)  # fmt: skip
def test_flag_of_another_program_becomes_a_setting(folder, monkeypatch, line, setting, value):
    seen = []
    monkeypatch.setattr("woolly.cli.commands.serve.read_settings", lambda flags: seen.append(flags) or 1 / 0)
    monkeypatch.setattr("woolly.cli.commands.serve.pulled", lambda name: name)
    assert isinstance(CliRunner().invoke(app, ["serve", *line.split()]).exception, ZeroDivisionError)
    given = seen[0][setting]
    assert (tuple(given) if isinstance(value, tuple) else given) == value


def test_sampling_settings_become_defaults(folder):
    (folder / "woolly.toml").write_text('[serve]\ndry-sequence-breakers = ["a,b", "\\n"]\nstop = ["x, y"]\n')
    environment = {"WOOLLY_DRY_MULTIPLIER": "0.8", "WOOLLY_LOGIT_BIAS": "504-inf"}
    defaults = read_settings(
        {"samplers": "penalties;dry;top-k;temp", "top_p": 0.95, "min_p": 0.05}, environment
    ).defaults()
    assert defaults.samplers == ("penalties", "dry", "top_k", "temperature")
    assert (defaults.dry_multiplier, defaults.dry_sequence_breakers) == (0.8, ("a,b", "\n"))
    assert (defaults.logit_bias, defaults.stop) == ({504: float("-inf")}, ("x, y",))


def test_bare_fa_flag_takes_only_its_values(folder):
    result = CliRunner().invoke(app, ["serve", "-fa", "-m", "missing.gguf"])
    assert isinstance(result.exception, StoreError) and result.stderr == ""


@pytest.mark.parametrize(
    "flags",
    ["-ngl 99", "--n-gpu-layers all", "-fa on", "--flash-attn auto", "-cb", "--cont-batching", "--mmap", "-kvu",
     "--jinja", "--mmproj-auto", "--no-context-shift", "-c 0", "-t -1", "-n -2",
     "-np -1", "--sleep-idle-seconds -1", "-ctk q8_0 -ctv q8_0", "-b 2048 -ub 512", "--no-cache-idle-slots",
     "--no-webui"],
)  # fmt: skip
def test_llama_server_flag_for_default_behavior_is_accepted(folder, flags):
    error = CliRunner().invoke(app, ["serve", *flags.split(), "-m", "missing.gguf"]).exception
    assert isinstance(error, StoreError) and "missing.gguf" in str(error)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reasoning": "never"}, "reasoning is 'never'; choose one of: auto, on, off"),
        ({"reasoning_format": "deepseek-legacy"}, "choose one of: auto, deepseek, none"),
        ({"reasoning_budget": -2}, "expected a number of tokens, or -1 for no limit"),
        ({"api_prefix": "llm/"}, "without a slash at the end"),
        ({"slot_save_path": Path("missing")}, "slot_save_path is missing, which is not a folder"),
        ({"chat_template": "chatlm"}, "the name of a built-in template (chatml, command-r"),
        ({"chat_template_kwargs": "[1]"}, "expected a JSON object"),
    ],
)
def test_unsupported_llama_server_setting_is_rejected(given, says):
    with pytest.raises(RequestError, match=re.escape(says)):
        Settings(**given)


def test_non_unified_context_is_divided():
    assert Settings(ctx_size=512, parallel=2).request_ctx == 512
    assert Settings(ctx_size=512, parallel=2, kv_unified=False).request_ctx == 256
    assert Settings(ctx_size=0, kv_unified=False).request_ctx is None


def test_no_foreign_flag_hides_one_of_ours():
    ours = {name for setting in fields(Settings) for flag in setting.metadata["flags"] for name in flag.split("/")}
    serve = app.get_command(Context(app), "serve")
    theirs = {name: row for row in FOREIGN_FLAGS for name in f"{row.names} {row.off_names}".split()}
    for name in ours & theirs.keys():
        values = ["x"] if theirs[name].takes_value else []
        assert translated(Context(serve), [name, *values], {}) == [name, *values]


def test_other_commands_do_not_import_the_web_framework():
    script = "import sys, woolly.cli; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "numpy"} & set(loaded)


def test_backend_and_device_reach_the_model_unless_contradictory():
    options = Settings(backend="cuda", device="cuda:1").model_options()
    assert (options.backend, options.device) == ("cuda", "cuda:1")
    assert Settings(optimized_inference=False).model_options().backend == "reference"
    for given, says in (
        ({"backend": "gpu"}, "backend is 'gpu'; choose one of: auto, cuda, metal, vulkan, cpu, reference"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"device": "cuda:1", "backend": "cpu"}, "device is 'cuda:1', but backend is 'cpu'"),
        ({"device": "cuda", "optimized_inference": False}, "device is 'cuda', but backend is 'reference'"),
        ({"backend": "cuda", "optimized_inference": False}, "backend is cuda, but without optimized_inference"),
        ({"backend": "reference", "cache_type_k": "q8_0"}, "the reference backend supports only f32"),
    ):
        with pytest.raises(RequestError, match=says):
            Settings(**given)


@pytest.mark.parametrize(
    ("k", "v", "both"),
    [(None, None, None), (None, "f16", "f16"), (None, "q4", "f16/q4"), ("q4", None, "q4"), ("q4", "q4", "q4")],
)
def test_cache_types_of_keys_and_values_are_one_name(k, v, both):
    assert Settings(cache_type_k=k, cache_type_v=v).model_options().kv_type == both


def test_control_vectors_and_drafts_reach_the_model():
    settings = read_settings(
        {"control_vector": ["a.gguf,b.gguf"], "control_vector_scaled": ["c:d.gguf:-0.5"], "model_draft": "mtp"},
        {"WOOLLY_CONTROL_VECTOR_LAYER_RANGE": "3:9"},
    )
    options = settings.model_options()
    assert options.control_vectors == (("a.gguf", 1.0), ("b.gguf", 1.0), ("c:d.gguf", -0.5))
    assert (options.control_vector_layers, options.speculation) == ((3, 9), "mtp")
    assert Settings().model_options().speculation == "auto"
    for wrong in ({"control_vector_scaled": ("c.gguf",)}, {"control_vector_layer_range": "3"}):
        with pytest.raises(RequestError, match="expected"):
            Settings(**wrong).model_options()
