"""The table of model families that people name: one row per family, one tag per size.

The first tag of a row is the one that the bare name and `:latest` mean. Sizes are those of the default file, in
gigabytes, and approximate: the hub knows the exact ones. Nothing here is checked against the hub, so a wrong address
fails when it is pulled, with a sentence that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["FAMILIES", "Family", "Purpose", "Tag", "models_for"]

Purpose = Literal["chat", "embed", "rerank"]


@dataclass(frozen=True)
class Tag:
    """One size of a family: a repository on the hub, and the file of it that is meant if no type is named."""

    repo: str  # org/name
    gigabytes: float  # of the default file, approximate
    quant: str = "Q4_K_M"
    architecture: str = ""  # if it is not the family's

    def __post_init__(self) -> None:
        assert self.repo.count("/") == 1 and self.gigabytes > 0


@dataclass(frozen=True)
class Family:
    """A row: what the models of one name have in common, and their sizes by tag."""

    architecture: str  # general.architecture of the files
    licence: str
    tags: Mapping[str, Tag]
    purpose: Purpose = "chat"  # what its models were made for


def models_for(purpose: Purpose) -> list[str]:
    """Returns the names of the families that were made for a purpose."""
    return [name for name, family in FAMILIES.items() if family.purpose == purpose]


def _qwen2(stem: str, gigabytes: Mapping[str, float]) -> dict[str, Tag]:
    """Returns the sizes of a Qwen2.5 family."""
    return {f"{size}b": Tag(f"Qwen/{stem}-{size}B-Instruct-GGUF", value) for size, value in gigabytes.items()}


_APACHE, _MIT, _GEMMA = "Apache-2.0", "MIT", "Gemma"

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama3.3": Family("llama", "Llama 3.3", {"70b": Tag("bartowski/Llama-3.3-70B-Instruct-GGUF", 42.5)}),
        "llama3.2": Family(
            "llama",
            "Llama 3.2",
            {
                "3b": Tag("bartowski/Llama-3.2-3B-Instruct-GGUF", 2.0),
                "1b": Tag("bartowski/Llama-3.2-1B-Instruct-GGUF", 0.8),
            },
        ),
        "llama3.1": Family(
            "llama",
            "Llama 3.1",
            {
                "8b": Tag("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", 4.9),
                "70b": Tag("bartowski/Meta-Llama-3.1-70B-Instruct-GGUF", 42.5),
            },
        ),
        "llama3": Family("llama", "Llama 3", {"8b": Tag("bartowski/Meta-Llama-3-8B-Instruct-GGUF", 4.9)}),
        "llama2": Family(
            "llama",
            "Llama 2",
            {"7b": Tag("TheBloke/Llama-2-7B-Chat-GGUF", 4.1), "13b": Tag("TheBloke/Llama-2-13B-chat-GGUF", 7.9)},
        ),
        "llama4": Family("llama4", "Llama 4", {"scout": Tag("unsloth/Llama-4-Scout-17B-16E-Instruct-GGUF", 65.4)}),
        "codellama": Family(
            "llama",
            "Llama 2",
            {
                "7b": Tag("TheBloke/CodeLlama-7B-Instruct-GGUF", 4.1),
                "13b": Tag("TheBloke/CodeLlama-13B-Instruct-GGUF", 7.9),
            },
        ),
        "tinyllama": Family("llama", _APACHE, {"1.1b": Tag("TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", 0.7)}),
        "smollm2": Family(  # the bare name and :135m are the default model, in catalogue.py
            "llama",
            _APACHE,
            {
                "1.7b": Tag("HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", 1.1),
                "360m": Tag("HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", 0.4, "Q8_0"),
            },
        ),
        "smollm3": Family("smollm3", _APACHE, {"3b": Tag("ggml-org/SmolLM3-3B-GGUF", 1.9)}),
        "qwen3": Family(
            "qwen3",
            _APACHE,
            {
                "8b": Tag("Qwen/Qwen3-8B-GGUF", 5.0),
                "0.6b": Tag("unsloth/Qwen3-0.6B-GGUF", 0.4),
                "1.7b": Tag("unsloth/Qwen3-1.7B-GGUF", 1.1),
                "4b": Tag("Qwen/Qwen3-4B-GGUF", 2.5),
                "14b": Tag("Qwen/Qwen3-14B-GGUF", 9.0),
                "30b": Tag("unsloth/Qwen3-30B-A3B-GGUF", 18.6, architecture="qwen3moe"),
                "32b": Tag("Qwen/Qwen3-32B-GGUF", 19.8),
            },
        ),
        "qwen3-coder": Family("qwen3moe", _APACHE, {"30b": Tag("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", 18.6)}),
        "qwen2.5": Family(
            "qwen2",
            "Apache-2.0; 3b and 72b: Qwen",
            _qwen2("Qwen2.5", {"7": 4.7, "0.5": 0.5, "1.5": 1.1, "3": 2.1, "14": 9.0, "32": 19.9, "72": 47.4}),
        ),
        "qwen2.5-coder": Family(
            "qwen2",
            "Apache-2.0; 3b: Qwen",
            _qwen2("Qwen2.5-Coder", {"7": 4.7, "0.5": 0.5, "1.5": 1.1, "3": 2.1, "14": 9.0, "32": 19.9}),
        ),
        "qwq": Family("qwen2", _APACHE, {"32b": Tag("Qwen/QwQ-32B-GGUF", 19.9)}),
        "deepseek-r1": Family(
            "qwen2",
            "MIT; 70b: Llama 3.3",
            {
                "8b": Tag("unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF", 5.0, architecture="qwen3"),
                "1.5b": Tag("unsloth/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", 1.1),
                "7b": Tag("unsloth/DeepSeek-R1-Distill-Qwen-7B-GGUF", 4.7),
                "14b": Tag("unsloth/DeepSeek-R1-Distill-Qwen-14B-GGUF", 9.0),
                "32b": Tag("unsloth/DeepSeek-R1-Distill-Qwen-32B-GGUF", 19.9),
                "70b": Tag("unsloth/DeepSeek-R1-Distill-Llama-70B-GGUF", 42.5, architecture="llama"),
            },
        ),
        "deepseek-coder": Family(
            "llama",
            "DeepSeek",
            {
                "1.3b": Tag("TheBloke/deepseek-coder-1.3b-instruct-GGUF", 0.9),
                "6.7b": Tag("TheBloke/deepseek-coder-6.7B-instruct-GGUF", 4.1),
            },
        ),
        "gemma3": Family(
            "gemma3",
            _GEMMA,
            {
                "4b": Tag("ggml-org/gemma-3-4b-it-GGUF", 2.5),
                "270m": Tag("unsloth/gemma-3-270m-it-GGUF", 0.3),
                "1b": Tag("ggml-org/gemma-3-1b-it-GGUF", 0.8),
                "12b": Tag("ggml-org/gemma-3-12b-it-GGUF", 7.3),
                "27b": Tag("ggml-org/gemma-3-27b-it-GGUF", 16.5),
            },
        ),
        "gemma3n": Family(
            "gemma3n",
            _GEMMA,
            {"e4b": Tag("unsloth/gemma-3n-E4B-it-GGUF", 4.5), "e2b": Tag("unsloth/gemma-3n-E2B-it-GGUF", 3.0)},
        ),
        "gemma2": Family(
            "gemma2",
            _GEMMA,
            {
                "9b": Tag("bartowski/gemma-2-9b-it-GGUF", 5.8),
                "2b": Tag("bartowski/gemma-2-2b-it-GGUF", 1.7),
                "27b": Tag("bartowski/gemma-2-27b-it-GGUF", 16.6),
            },
        ),
        "gpt-oss": Family(
            "gpt-oss",
            _APACHE,
            {
                "20b": Tag("ggml-org/gpt-oss-20b-GGUF", 12.1, "MXFP4"),
                "120b": Tag("ggml-org/gpt-oss-120b-GGUF", 63.4, "MXFP4"),
            },
        ),
        "mistral": Family("llama", _APACHE, {"7b": Tag("bartowski/Mistral-7B-Instruct-v0.3-GGUF", 4.4)}),
        "mistral-nemo": Family("llama", _APACHE, {"12b": Tag("bartowski/Mistral-Nemo-Instruct-2407-GGUF", 7.5)}),
        "mistral-small": Family("llama", _APACHE, {"24b": Tag("bartowski/Mistral-Small-24B-Instruct-2501-GGUF", 14.3)}),
        "mistral-small3.2": Family(
            "llama", _APACHE, {"24b": Tag("unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF", 14.3)}
        ),
        "devstral": Family("llama", _APACHE, {"24b": Tag("unsloth/Devstral-Small-2507-GGUF", 14.3)}),
        "magistral": Family("llama", _APACHE, {"24b": Tag("unsloth/Magistral-Small-2509-GGUF", 14.3)}),
        "zephyr": Family("llama", _MIT, {"7b": Tag("TheBloke/zephyr-7B-beta-GGUF", 4.4)}),
        "phi4": Family("phi3", _MIT, {"14b": Tag("bartowski/phi-4-GGUF", 9.1)}),
        "phi4-mini": Family("phi3", _MIT, {"3.8b": Tag("unsloth/Phi-4-mini-instruct-GGUF", 2.5)}),
        "phi3.5": Family("phi3", _MIT, {"3.8b": Tag("bartowski/Phi-3.5-mini-instruct-GGUF", 2.4)}),
        "granite3.3": Family(
            "granite",
            _APACHE,
            {
                "8b": Tag("ibm-granite/granite-3.3-8b-instruct-GGUF", 4.9),
                "2b": Tag("ibm-granite/granite-3.3-2b-instruct-GGUF", 1.5),
            },
        ),
        "granite4": Family(
            "granitehybrid",
            _APACHE,
            {
                "micro": Tag("ibm-granite/granite-4.0-micro-GGUF", 2.1, architecture="granite"),
                "micro-h": Tag("ibm-granite/granite-4.0-h-micro-GGUF", 1.9),
                "tiny-h": Tag("ibm-granite/granite-4.0-h-tiny-GGUF", 4.2),
                "small-h": Tag("ibm-granite/granite-4.0-h-small-GGUF", 19.5),
            },
        ),
        "falcon3": Family(
            "llama",
            "Falcon",
            {
                "7b": Tag("tiiuae/Falcon3-7B-Instruct-GGUF", 4.6),
                "1b": Tag("tiiuae/Falcon3-1B-Instruct-GGUF", 1.1),
                "3b": Tag("tiiuae/Falcon3-3B-Instruct-GGUF", 2.0),
                "10b": Tag("tiiuae/Falcon3-10B-Instruct-GGUF", 6.3),
            },
        ),
        "olmo2": Family("olmo2", _APACHE, {"7b": Tag("allenai/OLMo-2-1124-7B-Instruct-GGUF", 4.5)}),
        "exaone3.5": Family(
            "exaone",
            "EXAONE",
            {
                "7.8b": Tag("LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct-GGUF", 4.8),
                "2.4b": Tag("LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct-GGUF", 1.6),
            },
        ),
        "glm4": Family("glm4", _MIT, {"9b": Tag("bartowski/THUDM_GLM-4-9B-0414-GGUF", 6.2)}),
        "command-r7b": Family("cohere2", "CC-BY-NC-4.0", {"7b": Tag("bartowski/c4ai-command-r7b-12-2024-GGUF", 5.1)}),
        "lfm2": Family(
            "lfm2",
            "LFM 1.0",
            {"1.2b": Tag("LiquidAI/LFM2-1.2B-GGUF", 0.7), "2.6b": Tag("LiquidAI/LFM2-2.6B-GGUF", 1.6)},
        ),
        "hermes3": Family("llama", "Llama 3.1", {"8b": Tag("NousResearch/Hermes-3-Llama-3.1-8B-GGUF", 4.9)}),
        "dolphin3": Family("llama", "Llama 3.1", {"8b": Tag("bartowski/Dolphin3.0-Llama3.1-8B-GGUF", 4.9)}),
        "starcoder2": Family(
            "starcoder2",
            "OpenRAIL-M",
            {
                "3b": Tag("second-state/StarCoder2-3B-GGUF", 1.8),
                "7b": Tag("second-state/StarCoder2-7B-GGUF", 4.4),
            },
        ),
        "qwen3-embedding": Family(
            "qwen3",
            _APACHE,
            {
                "0.6b": Tag("Qwen/Qwen3-Embedding-0.6B-GGUF", 0.6, "Q8_0"),
                "4b": Tag("Qwen/Qwen3-Embedding-4B-GGUF", 2.5),
                "8b": Tag("Qwen/Qwen3-Embedding-8B-GGUF", 4.7),
            },
            "embed",
        ),
        "nomic-embed-text": Family(
            "nomic-bert", _APACHE, {"v1.5": Tag("nomic-ai/nomic-embed-text-v1.5-GGUF", 0.3, "F16")}, "embed"
        ),
        "nomic-embed-text-v2-moe": Family(
            "nomic-bert-moe", _APACHE, {"475m": Tag("nomic-ai/nomic-embed-text-v2-moe-GGUF", 0.5, "Q8_0")}, "embed"
        ),
        "bge-m3": Family("bert", _MIT, {"567m": Tag("gpustack/bge-m3-GGUF", 0.6, "Q8_0")}, "embed"),
        "bge-large": Family("bert", _MIT, {"335m": Tag("CompendiumLabs/bge-large-en-v1.5-gguf", 0.7, "F16")}, "embed"),
        "bge-small": Family("bert", _MIT, {"33m": Tag("CompendiumLabs/bge-small-en-v1.5-gguf", 0.1, "F16")}, "embed"),
        "all-minilm": Family(
            "bert", _APACHE, {"22m": Tag("second-state/All-MiniLM-L6-v2-Embedding-GGUF", 0.03, "Q8_0")}, "embed"
        ),
        "mxbai-embed-large": Family(
            "bert", _APACHE, {"335m": Tag("mixedbread-ai/mxbai-embed-large-v1", 0.7, "F16")}, "embed"
        ),
        "embeddinggemma": Family(
            "gemma-embedding", _GEMMA, {"300m": Tag("ggml-org/embeddinggemma-300M-GGUF", 0.3, "Q8_0")}, "embed"
        ),
        "bge-reranker-v2-m3": Family(
            "bert", _APACHE, {"568m": Tag("gpustack/bge-reranker-v2-m3-GGUF", 0.6, "Q8_0")}, "rerank"
        ),
        "qwen3-reranker": Family(
            "qwen3", _APACHE, {"0.6b": Tag("ggml-org/Qwen3-Reranker-0.6B-Q8_0-GGUF", 0.6, "Q8_0")}, "rerank"
        ),
        "jina-reranker-v1-tiny-en": Family(
            "jina-bert-v2", _APACHE, {"33m": Tag("gpustack/jina-reranker-v1-tiny-en-GGUF", 0.07, "F16")}, "rerank"
        ),
    }
)
