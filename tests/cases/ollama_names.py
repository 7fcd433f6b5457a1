"""Model names that users of Ollama type: the most used of its library, with common tags."""

_NAMES = """
    llama3.1 llama3.1:8b llama3.1:70b llama3.1:405b llama3.1:8b-instruct-q4_K_M deepseek-r1 deepseek-r1:1.5b
    deepseek-r1:7b deepseek-r1:8b deepseek-r1:14b deepseek-r1:32b deepseek-r1:70b deepseek-r1:671b llama3.2
    llama3.2:1b llama3.2:3b llama3.2:3b-instruct-q8_0 nomic-embed-text nomic-embed-text:v1.5 mistral mistral:7b
    mistral:7b-instruct qwen2.5 qwen2.5:0.5b qwen2.5:1.5b qwen2.5:3b qwen2.5:7b qwen2.5:7b-instruct qwen2.5:14b
    qwen2.5:32b qwen2.5:72b qwen3 qwen3:0.6b qwen3:1.7b qwen3:4b qwen3:8b qwen3:14b qwen3:30b qwen3:30b-a3b qwen3:32b
    qwen3:235b qwen3:235b-a22b qwen3:4b-instruct qwen3:4b-instruct-2507 qwen3:30b-a3b-instruct-2507 qwen3:4b-thinking
    qwen3:30b-a3b-thinking-2507 phi3 phi3:mini phi3:medium phi3:3.8b phi3:14b llama3 llama3:8b llama3:70b
    llama3:instruct gemma3 gemma3:270m gemma3:1b gemma3:4b gemma3:12b gemma3:27b gemma3:4b-it-qat gemma3:12b-it-qat
    gemma3:27b-it-qat gemma2 gemma2:2b gemma2:9b gemma2:27b qwen2.5-coder qwen2.5-coder:0.5b qwen2.5-coder:1.5b
    qwen2.5-coder:1.5b-base qwen2.5-coder:3b qwen2.5-coder:7b qwen2.5-coder:14b qwen2.5-coder:32b llava llava:7b
    llava:13b llava:34b phi4 phi4:14b mxbai-embed-large gpt-oss gpt-oss:20b gpt-oss:120b gpt-oss:20b-cloud
    gpt-oss:120b-cloud qwen qwen:0.5b qwen:4b qwen:7b gemma gemma:2b gemma:7b llama2 llama2:7b llama2:13b llama2:70b
    qwen2 qwen2:0.5b qwen2:1.5b qwen2:7b qwen2:72b codellama codellama:7b codellama:13b codellama:34b
    codellama:7b-code minicpm-v minicpm-v:8b llama3.2-vision llama3.2-vision:11b llama3.2-vision:90b tinyllama
    tinyllama:1.1b mistral-nemo mistral-nemo:12b dolphin3 dolphin3:8b olmo2 olmo2:7b olmo2:13b bge-m3 bge-m3:567m
    deepseek-v3 deepseek-v3:671b deepseek-v3.1 deepseek-v3.1:671b deepseek-v3.1:671b-cloud llama3.3 llama3.3:70b
    smollm2 smollm2:135m smollm2:360m smollm2:1.7b mistral-small mistral-small:22b mistral-small:24b all-minilm
    all-minilm:22m all-minilm:33m snowflake-arctic-embed snowflake-arctic-embed:335m snowflake-arctic-embed2
    deepseek-coder deepseek-coder:1.3b deepseek-coder:6.7b deepseek-coder:33b llava-llama3 starcoder2 starcoder2:3b
    starcoder2:7b starcoder2:15b codegemma codegemma:2b codegemma:7b deepseek-coder-v2 deepseek-coder-v2:16b
    deepseek-coder-v2:lite falcon3 falcon3:1b falcon3:3b falcon3:7b falcon3:10b qwq qwq:32b orca-mini mixtral
    mixtral:8x7b mixtral:8x22b llama2-uncensored phi phi:2.7b qwen3-coder qwen3-coder:30b qwen3-coder:480b
    qwen3-coder:480b-cloud qwen3-coder:30b-a3b-q4_K_M cogito cogito:8b dolphin-phi dolphin-mistral dolphin-mixtral
    dolphin-llama3 openthinker openthinker:7b granite3.3 granite3.3:2b granite3.3:8b granite3.2 granite3.2-vision
    granite3.1-dense granite3.1-moe granite3-dense granite3-moe granite4 granite4:micro granite4:tiny-h
    granite4:small-h granite4:350m granite4:1b granite-code granite-embedding granite3-guardian magistral
    magistral:24b devstral devstral:24b mistral-small3.1 mistral-small3.2 mistral-large codestral codestral:22b
    command-r command-r:35b command-r-plus command-r7b command-a aya aya-expanse aya:8b yi yi:6b yi:9b yi:34b yi-coder
    yi-coder:9b yi-coder:1.5b smollm smollm:135m smollm:360m smollm:1.7b phi3.5 phi3.5:3.8b phi4-mini phi4-mini:3.8b
    phi4-reasoning phi4-mini-reasoning zephyr zephyr:7b vicuna vicuna:7b vicuna:13b wizardlm2 wizardlm2:7b
    wizard-vicuna-uncensored wizardcoder wizard-math wizardlm wizard-vicuna wizardlm-uncensored openchat openhermes
    nous-hermes nous-hermes2 nous-hermes2-mixtral hermes3 hermes3:3b hermes3:8b hermes3:70b starling-lm neural-chat
    mistral-openorca solar solar:10.7b solar-pro stable-code stablelm2 stablelm-zephyr stable-beluga tinydolphin
    moondream moondream:1.8b bakllava llava-phi3 codeqwen codegeex4 sqlcoder duckdb-nsql dolphincoder phind-codellama
    codeup codebooga magicoder opencoder deepcoder deepcoder:14b deepscaler starcoder mathstral qwen2-math reader-lm
    nuextract reflection exaone3.5 exaone-deep glm4 glm4:9b internlm2 nemotron nemotron-mini athene-v2 marco-o1 tulu3
    tulu3:8b sailor2 llama3-gradient llama3-chatqa llama3-groq-tool-use llama2-chinese llama-pro llama-guard3
    llama-guard3:1b llama-guard3:8b llama4 llama4:scout llama4:maverick shieldgemma bespoke-minicheck firefunction-v2
    everythinglm xwinlm yarn-llama2 yarn-mistral samantha-mistral medllama2 meditron megadolphin nexusraven notus
    notux open-orca-platypus2 goliath orca2 alfred mistrallite dbrx falcon falcon2 deepseek-llm deepseek-v2
    deepseek-v2:16b deepseek-v2.5 smallthinker r1-1776 bge-large paraphrase-multilingual embeddinggemma
    embeddinggemma:300m qwen3-embedding qwen3-embedding:0.6b qwen3-embedding:4b qwen3-embedding:8b
    nomic-embed-text-v2-moe qwen2.5vl qwen2.5vl:3b qwen2.5vl:7b qwen2.5vl:32b qwen2.5vl:72b qwen3-vl qwen3-vl:2b
    qwen3-vl:4b qwen3-vl:8b qwen3-vl:30b qwen3-vl:30b-a3b qwen3-vl:32b qwen3-vl:235b gemma3n gemma3n:e2b gemma3n:e4b
    medgemma medgemma:4b translategemma functiongemma deepseek-ocr glm-ocr gemma4 gemma4:e2b gemma4:e4b gemma4:26b
    gemma4:31b gemma4:12b qwen3-next qwen3-next:80b qwen3-coder-next qwen3.5 qwen3.5:4b qwen3.5:9b qwen3.5:27b
    qwen3.5:35b qwen3.5:35b-a3b qwen3.5:122b qwen3.5:cloud qwen3.6 qwen3.6:27b qwen3.6:35b-a3b glm-4.6 glm-4.6:cloud
    glm-4.7 glm-4.7-flash glm-4.7:cloud glm-5 glm-5:cloud glm-5.1 kimi-k2 kimi-k2:1t-cloud kimi-k2-thinking
    kimi-k2-thinking:cloud kimi-k2.5 kimi-k2.5:cloud kimi-k2.6 minimax-m2 minimax-m2:cloud minimax-m2.1 minimax-m2.5
    minimax-m2.7 deepseek-v3.2 deepseek-v4-flash gemini-3-flash-preview ministral-3 ministral-3:3b ministral-3:8b
    ministral-3:14b devstral-2 devstral-small-2 devstral-small-2:24b mistral-large-3 nemotron-3-nano
    nemotron-3-nano:30b nemotron-3-super nemotron3:33b olmo-3 olmo-3:7b olmo-3:32b olmo-3.1 rnj-1 lfm2 lfm2.5-thinking
    lfm2:24b step-3.5-flash gpt-oss-safeguard gpt-oss-safeguard:20b
"""
OLLAMA_NAMES = tuple(_NAMES.split())
