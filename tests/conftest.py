"""What all tests share: the real model, and which tests `scripts/test quick` leaves out."""

import gc
import logging
import math
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from threadpoolctl import threadpool_limits

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, store
from woolly.engine.drafts.purse import Purses
from woolly.engine.request import Request
from woolly.errors import StoreError

#: Folders, files and tests that start processes, servers or browsers, build, or compute for seconds.
SLOW = (
    "tests/cache/test_prefix.py::TestPages",
    "tests/cache/test_shared_folder.py",
    "tests/chat/test_roles.py::test_a_conversation_that_grows_keeps_its_beginning",
    "tests/chat/tools/test_families.py::test_one_call_and_two_are_found_with_text_around",
    "tests/chat/tools/test_grammar.py::test_a_model_may_think_before_it_calls",
    "tests/chat/tools/test_grammar.py::test_several_calls_may_come_unless_they_must_not",
    "tests/chat/tools/test_grammar.py::test_strict_tools_may_be_left_alone_but_not_be_called_wrongly",
    "tests/chat/tools/test_parser.py::test_a_text_of_nothing_but_marks_is_read_in_one_pass",
    "tests/chat/tools/test_parser.py::test_whatever_a_model_writes_splits_change_nothing_and_no_letter_is_made_up",
    "tests/cli/test_bench.py",
    "tests/cli/test_chat_tools.py",
    "tests/cli/test_cli.py",
    "tests/cli/test_commands.py",
    "tests/cli/test_faults.py",
    "tests/cli/test_launch.py",
    "tests/cli/test_list.py",
    "tests/cli/test_prompt.py::test_nothing_is_read_where_standard_input_is_closed",
    "tests/cli/test_prompt.py::test_the_whole_command_joins_what_is_piped",
    "tests/cli/test_quantize.py::test_types_are_chosen_for_a_size",
    "tests/cli/test_screen.py::test_the_table_of_bench",
    "tests/cli/test_show_gpu.py::test_a_gpu_is_named_with_what_it_would_have",
    "tests/cli/test_speech.py::test_the_transcript_is_printed_without_a_prompt",
    "tests/cli/test_start.py",
    "tests/cli/test_talk.py",
    "tests/cli/test_usage.py",
    "tests/cli/test_why.py",
    "tests/clients",
    "tests/cluster/test_fleet.py::test_a_cancelled_answer_is_computed_no_further",
    "tests/cluster/test_fleet.py::test_a_process_that_is_killed_at_any_token_is_not_noticed",
    "tests/cluster/test_fleet.py::test_a_silent_replica_is_given_up",
    "tests/cluster/test_fleet.py::test_every_kind_of_request_goes_on_elsewhere",
    "tests/cluster/test_fleet.py::test_replicas_are_replaced_under_streams",
    "tests/cluster/test_lies.py",
    "tests/cluster/test_listening.py::test_connections_that_say_nothing_keep_no_front_away",
    "tests/cluster/test_pipeline.py",
    "tests/cluster/test_serve.py::test_one_server_of_two_processes",
    "tests/convert/test_families.py::test_a_checkpoint_becomes_the_model_that_it_is",
    "tests/convert/test_folders.py::test_mutated_files_are_one_sentence_and_leave_nothing",
    "tests/convert/test_published.py::test_a_published_checkpoint_becomes_the_model_that_it_is",
    "tests/docs/test_blocks.py::test_every_option_of_the_comparison_that_its_page_names_exists",
    "tests/docs/test_blocks.py::test_the_blocks_of_a_page_run_in_order",
    "tests/docs/test_facts.py::test_a_message_that_is_explained_is_one_that_the_code_has",
    "tests/engine/test_ahead.py::test_answers_are_those_of_a_device_that_waits",
    "tests/engine/test_disk.py::test_a_damaged_file_is_a_miss_and_goes",
    "tests/engine/test_disk.py::test_a_writer_that_is_killed_between_two_calls_leaves_whole_files_only",
    "tests/engine/test_disk.py::test_processes_keep_to_one_bound_and_notice_what_was_cleared",
    "tests/engine/test_disk_windows.py::test_processes_that_share_windows_and_lose_pages_say_what_they_say_alone",
    "tests/engine/test_draft_files.py::test_a_block_beside_the_model_guesses_as_the_one_inside",
    "tests/engine/test_fork.py",
    "tests/engine/test_gemma3n.py",
    "tests/engine/test_heads.py::test_requests_of_all_kinds_give_the_same_from_heads",
    "tests/engine/test_heads.py::test_the_emulated_gpu_ranks_for_the_engine",
    "tests/engine/test_hearing.py::test_a_sound_has_the_same_bits_alone_together_in_chunks_and_from_the_cache",
    "tests/engine/test_hostile_files.py",
    "tests/engine/test_meaning.py::test_a_job_of_10000_texts_holds_up_a_chat_by_one_batch_at_a_time",
    "tests/engine/test_mtp.py::test_requests_together_give_what_they_give_alone_without",
    "tests/engine/test_replay.py::test_text_is_the_same_with_and_without",
    "tests/engine/test_seeing.py::test_a_picture_has_the_same_bits_alone_together_in_chunks_and_from_the_cache",
    "tests/engine/test_speculation.py",
    "tests/engine/test_together.py",
    "tests/engine/test_together_states.py",
    "tests/engine/test_windows.py::test_windows_and_states_go_together_when_requests_share_and_preempt",
    "tests/gguf/test_bad_files.py::test_a_file_cut_anywhere_fails_at_open",
    "tests/gguf/test_fuzz.py",
    "tests/gguf/test_lost_file.py",
    "tests/gguf/test_reader.py::test_a_vocabulary_of_256k_tokens_is_not_read_before_it_is_asked_for",
    "tests/gguf/test_shards.py::test_opening_holds_the_keys_of_few_shards_at_once",
    "tests/gguf/test_writer.py::test_any_metadata_comes_back",
    "tests/gguf/test_writer.py::test_the_tokens_of_a_real_vocabulary_are_those_of_the_peer",
    "tests/grammar/test_constraint.py::test_a_grammar_is_compiled_once_and_the_cache_is_bounded",
    "tests/grammar/test_constraint_hostile.py",
    "tests/grammar/test_constraint_schema.py::test_random_walks_validate_with_real_vocabularies",
    "tests/grammar/test_gbnf.py::test_any_grammar_is_the_same_language_in_lark",
    "tests/grammar/test_gbnf.py::test_greedy_lexemes_lose_no_text_and_add_none",
    "tests/grammar/test_gbnf.py::test_random_walks_over_longer_tokens_stay_within_the_language",
    "tests/llm/test_files.py",
    "tests/llm/test_identity.py::test_it_is_the_same_in_another_process_whatever_numpy_may_use",
    "tests/llm/test_llm.py::test_smollm2",
    "tests/llm/test_videos.py",
    "tests/mcp/test_toolbox.py::test_servers_that_fail_leave_the_others_and_end_with_the_box",
    "tests/measure/test_examination.py",
    "tests/measure/test_gpu.py",
    "tests/measure/test_pick.py::test_a_result_fits_the_size_and_loses_no_more_than_known_mixes",
    "tests/models/test_ears.py::test_a_tower_gives_what_transformers_gives",
    "tests/models/test_goldens.py::test_smollm2",
    "tests/models/test_towers.py::test_a_tower_gives_what_transformers_gives",
    "tests/models/test_whisper_words.py::test_a_transcript_has_words_if_they_are_asked_for",
    "tests/models/test_wrong_keys.py",
    "tests/native",
    "tests/packaging/test_archive.py::test_an_archive_of_other_sources_stays_out_of_sdist_and_wheel",
    "tests/packaging/test_benchmarks.py",
    "tests/packaging/test_checks.py",
    "tests/packaging/test_kernels.py",
    "tests/packaging/test_platforms.py::test_types_hold_on_systems_that_no_test_runs_on",
    "tests/packaging/test_scripts.py",
    "tests/packaging/test_sdist.py",
    "tests/plan/test_cut.py::test_the_parts_of_a_model_give_its_bits",
    "tests/plan/test_cut.py::test_the_passes_find_in_parts_what_they_find_in_the_whole",
    "tests/plan/test_narrow.py::test_a_wanted_row_has_the_bits_that_it_has_among_all_rows",
    "tests/plan/test_passes.py::test_fused_plans_compute_the_same_bits",
    "tests/quant/test_decode.py::test_any_bytes_mean_what_the_peer_says",
    "tests/quantize/test_files.py::test_a_smaller_model_computes_nearly_the_same",
    "tests/runtime/cuda",
    "tests/runtime/metal",
    "tests/runtime/split",
    "tests/runtime/test_cpu_families.py",
    "tests/runtime/test_cpu_ops.py",
    "tests/runtime/test_cpu_process.py",
    "tests/runtime/test_cpu_rows.py",
    "tests/runtime/test_moe.py",
    "tests/runtime/test_protocol.py",
    "tests/runtime/test_reference.py::test_chunks_give_the_logits_of_the_whole",
    "tests/runtime/vulkan",
    "tests/senses/test_pdf.py",
    "tests/senses/test_video.py",
    "tests/serving/batches/test_job.py",
    "tests/serving/dialects/llama/test_settings_of_llama.py::test_settings_decide_how_a_conversation_is_shown",
    "tests/serving/dialects/llama/test_slots.py::test_what_cannot_be_saved_or_restored_is_named",
    "tests/serving/dialects/ole/test_flow.py",
    "tests/serving/dialects/ole/test_sessions.py",
    "tests/serving/dialects/ole/test_websocket.py",
    "tests/serving/dialects/openai/test_chat.py",
    "tests/serving/dialects/openai/test_completions.py",
    "tests/serving/dialects/openai/test_templates.py",
    "tests/serving/dialects/test_missing_routes.py",
    "tests/serving/gate/test_hostile.py",
    "tests/serving/gate/test_json_guard.py::test_all_that_is_json_passes_as_it_is",
    "tests/serving/gate/test_strangers.py::test_the_table_has_every_route_with_an_id",
    "tests/serving/pages",
    "tests/serving/test_health.py::test_the_description_names_errors_as_they_are_told",
    "tests/serving/test_lifecycle.py",
    "tests/serving/test_lost_device.py",
    "tests/serving/test_schema.py",
    "tests/serving/test_stopping.py",
    "tests/soak",
    "tests/store/test_fetch.py",
    "tests/templates/test_sandbox_fuzz.py",
    "tests/templates/test_sandbox_hostile.py",
    "tests/tokens/test_tokenizer_bpe.py",
)


#: Files that take the longest, the longest first: processes share the tests by files, and one of a minute that is
#: begun last leaves the others without work.
LONGEST = (
    "tests/runtime/cuda/test_ahead.py",  # compiles the emulated GPU for all files after it
    "tests/docs/test_blocks.py",
    "tests/runtime/vulkan/test_ops.py",
    "tests/runtime/vulkan/test_models.py",
    "tests/packaging/test_platforms.py",
    "tests/native/test_native.py",
    "tests/runtime/test_cpu_ops.py",
    "tests/models/test_wrong_keys.py",
    "tests/serving/test_schema.py",
    "tests/runtime/test_reference.py",
    "tests/engine/test_together_states.py",
    "tests/grammar/test_gbnf.py",
    "tests/engine/test_together.py",
    "tests/plan/test_passes.py",
    "tests/serving/test_lifecycle.py",
    "tests/serving/test_stopping.py",
)


# The same examples on every machine, and as much time for each as a busy machine takes.
hypothesis.settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")

ROOT = Path(__file__).resolve().parent.parent


def _wants_gpu(config: pytest.Config) -> bool:
    return "gpu" in config.option.markexpr.replace("not gpu", "")


def _hide_gpus() -> None:
    """Leaves Vulkan only the device that a CPU stands in for, which is never chosen unasked, and CUDA none."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if sys.platform == "linux":
        found = [str(path) for path in Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")]
        for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):  # the second is what old loaders read
            os.environ[name] = ":".join(found) or "none"
        os.environ["WOOLLY_VULKAN_DRIVER"] = "libvulkan.so.1"  # no driver's own library, which the loader does not open


def pytest_configure(config: pytest.Config) -> None:
    """Hides GPUs from all tests but those of GPUs: what others expect is of the CPU, which a machine with both has.

    Lets files be handed out in the order of `pytest_collection_modifyitems`.
    """
    if not _wants_gpu(config):
        _hide_gpus()
    # Threads of NumPy's matrix products wait by spinning, and those of the processes that share the tests take each
    # other's cores: with one thread, the reference computes a tiny RWKV in an eighth of the processor time.
    threadpool_limits(1, user_api="blas")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist would begin with the files of the most tests


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: they wait for servers, browsers and clocks.

    Two processes on two cores used 41 of the 52 minutes of processor time that a run of 26 minutes had.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return n_cores + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without the garbage collector, and takes them out of its later rounds.

    They are a million objects that stay until the end: a third of the time of collecting went into looking at them, and
    so did a good part of each `gc.collect()` of a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Lets each of the processes that share the tests begin with other folders.

    The first to come to a file rewrites its assertions and keeps the result on the disk. Of a fresh clone that takes 21
    of the 37 seconds of collecting, in each process if all go through the files in one order.
    """
    report = yield
    if isinstance(collector, (pytest.Session, pytest.Directory)) and report.passed:
        worker, n_workers = (os.environ.get(f"PYTEST_XDIST_WORKER{end}", "") for end in ("", "_COUNT"))
        first = len(report.result) * int(worker[2:]) // int(n_workers) if worker else 0
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips slow files before they are imported: to collect them takes longer than many tests."""
    is_slow = collection_path.is_relative_to(ROOT) and collection_path.relative_to(ROOT).as_posix() in SLOW
    return True if is_slow and config.option.markexpr == "not slow" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of `SLOW`, leaves out those of GPUs, and orders files: the longest first, then by their names.

    A whole run leaves out the rare ones too; in it, an entry without a test is an error.
    """
    others = [] if _wants_gpu(config) else [item for item in items if item.get_closest_marker("gpu")]
    if not config.option.file_or_dir and "rare" not in config.option.markexpr:
        others += [item for item in items if item.get_closest_marker("rare")]
    if others:
        config.hook.pytest_deselected(items=others)
        gone = set(others)
        items[:] = [item for item in items if item not in gone]
    names = {item: item.nodeid for item in items}  # made anew at each access
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    files = {item: name.partition("::")[0] for item, name in names.items()}
    items.sort(key=lambda item: (ranks.get(files[item], len(ranks)), files[item]))
    unused, slow = {*SLOW, *LONGEST}, pytest.mark.slow
    entries: dict[str, list[str]] = {}  # by file: 17,000 tests are not compared with each of 130 entries
    for item, name in names.items():
        file = files[item]
        if file not in entries:
            entries[file] = [entry for entry in SLOW if file.startswith(entry) or entry.startswith(f"{file}::")]
            unused.discard(file)
        found = [entry for entry in entries[file] if name.startswith(entry)]
        if found:
            item.add_marker(slow)
            unused.difference_update(found)
    chosen = (config.option.file_or_dir, config.option.keyword, config.option.markexpr, config.option.ignore)
    if unused and not any((*chosen, getattr(config.option, "lf", False))):
        left = ", ".join(sorted(unused))
        raise pytest.UsageError(f"tests/conftest.py: SLOW or LONGEST names what is not there: {left}")


class FreeDrafts:
    """In place of `DraftCost`: guesses cost nothing."""

    def is_due(self, n_answers: int) -> bool:
        return False

    def share(self, n_answers: int) -> float:
        return 0.0

    def plain(self, n_answers: int) -> float | None:
        return None

    def guessed(self, n_guesses: int, seconds: float) -> None:
        pass

    def stepped(self, n_answers: int, n_guesses: int, seconds: float) -> None:
        pass


class FreePurses(Purses):
    """Purses that are always full."""

    def seconds(self, request: Request) -> float:
        return math.inf

    def n_readable(self, request: Request) -> int:
        return 1 << 30


@pytest.fixture(scope="session", autouse=True)
def _steady() -> Iterator[None]:
    """Draws the same seed for every request of this process that names none, whichever thread asks first.

    A tiny random model may end its answer at any token: what a test asserts of it must not depend on the draw.
    Nor must it depend on a slow disk: what is closed has time to write. Nor on what a guess costs: a step of a tiny
    model takes less time than one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woolly.sampling.seeds.randbits", lambda n_bits: 20 % 2**n_bits)
        patch.setattr("woolly.engine.drafts.speculation.DraftCost", FreeDrafts)
        patch.setattr("woolly.engine.drafts.speculation.Purses", FreePurses)
        patch.setattr("woolly.cache.tier._FLUSHING", 120.0)
        yield


@pytest.fixture(autouse=True)
def _same_logs() -> Iterator[None]:
    """Undoes what a command did to the log when it ran inside of a test: others look at what is logged."""
    loggers = [logging.getLogger(name) for name in ("woolly", "uvicorn.error", "uvicorn.access")]
    before = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Returns the path of the real default model, pulled once into the user's cache.

    If it is not available, tests that need it are skipped with the reason; with CI=true they fail.
    """
    try:
        return store.pull("smollm2")
    except StoreError as error:
        reason = f"the real model is not available: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of a tiny random model of the architecture `llama`; no test changes the file."""
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny_llm(tiny_model: Path) -> Iterator[LLM]:
    """Yields the tiny model, opened once per module; a test makes its own `Engine` over its program."""
    with LLM(tiny_model, ctx=512) as llm:
        yield llm
