"""LangChain's and LlamaIndex' embedders against a server that runs: they need nothing but its address and a model.

    pip install langchain-openai langchain-ollama llama-index-embeddings-ollama llama-index-embeddings-openai
    woolly serve -m MODEL
    python tests/clients/embedders.py http://127.0.0.1:8080 MODEL

Too heavy for the suite (80 packages). Each must give the vectors of the others.
"""

import sys


def embedders(url: str, model: str):
    """Yields the name of each embedder, and its function from a text to a vector."""
    from langchain_ollama import OllamaEmbeddings
    from langchain_openai import OpenAIEmbeddings
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.embeddings.openai import OpenAIEmbedding

    yield (
        "langchain-openai",
        OpenAIEmbeddings(
            model=model, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
        ).embed_query,
    )
    yield "langchain-ollama", OllamaEmbeddings(model=model, base_url=url).embed_query
    yield "llama-index-ollama", OllamaEmbedding(model_name=model, base_url=url).get_text_embedding
    yield (
        "llama-index-openai",
        OpenAIEmbedding(model_name=model, api_base=f"{url}/v1", api_key="none").get_text_embedding,
    )


def main() -> None:
    """Prints a line for each embedder; the exit code is 1 if one of them differs."""
    url, model = sys.argv[1:3]
    first: list[float] = []
    for name, embed in embedders(url, model):
        vector = embed("wool is warm")
        first = first or vector
        differs = max(abs(a - b) for a, b in zip(vector, first, strict=True))
        print(f"{name}: {len(vector)} numbers, {differs:.1e} from the first")
        if differs > 1e-6:
            sys.exit(1)


if __name__ == "__main__":
    main()
