"""Rows of llama.cpp's argument table: names, names that turn a switch off, and a realistic value.

The key of a group lists the commands whose originals have these flags.
"""

from __future__ import annotations

# Flags of all originals, except those with argument parsers of their own.
COMMON = "serve run chat perplexity imatrix embed"

ROWS: dict[str, str] = {
    COMMON: r"""
-h --help --usage
--version
-cl --cache-list
--completion-bash
-t --threads = 4
-tb --threads-batch = 16
-C --cpu-mask = 0xff
-Cr --cpu-range = 0-3
--cpu-strict = 1
--prio = 1
--poll = 50
-Cb --cpu-mask-batch = 0xff
-Crb --cpu-range-batch = 0-3
--cpu-strict-batch = 1
--prio-batch = 1
--poll-batch = 1
-c --ctx-size = 16
-n --predict --n-predict = 16
-b --batch-size = 16
-ub --ubatch-size = 16
--keep = 16
--swa-full
-fa --flash-attn = on
--perf / --no-perf
-e --escape / --no-escape
--samplers = top_k;top_p;temperature
-s --seed = 42
--sampler-seq --sampling-seq = kpt
--ignore-eos
--temp --temperature = 0.7
--top-k = 16
--top-p = 0.9
--min-p = 0.1
--top-nsigma --top-n-sigma = 1.5
--xtc-probability = 0.5
--xtc-threshold = 0.1
--typical --typical-p = 0.9
--repeat-last-n = 16
--repeat-penalty = 1.1
--presence-penalty = 0.5
--frequency-penalty = 0.5
--dry-multiplier = 0.8
--dry-base = 1.75
--dry-allowed-length = 16
--dry-penalty-last-n = 16
--dry-sequence-breaker = none
--adaptive-target = 0.5
--adaptive-decay = 0.9
--dynatemp-range = 0.5
--dynatemp-exp = 1.0
--mirostat = 2
--mirostat-lr = 0.1
--mirostat-ent = 5
-l --logit-bias = 504+1
--grammar = root ::= "yes" | "no"
--grammar-file = file.txt
-j --json-schema = {}
-jf --json-schema-file = file.txt
-bs --backend-sampling
--rope-scaling = yarn
--rope-scale = 2
--rope-freq-base = 10000
--rope-freq-scale = 0.5
--yarn-orig-ctx = 16
--yarn-ext-factor = 1.0
--yarn-attn-factor = 1.0
--yarn-beta-slow = 1.0
--yarn-beta-fast = 32
-kvo --kv-offload / -nkvo --no-kv-offload
--repack / -nr --no-repack
--no-host
-ctk --cache-type-k = q4_0
-ctv --cache-type-v = q8_0
-dt --defrag-thold = 0.1
-np --parallel = 16
-mm --mmproj = file.txt
-mmu --mmproj-url = https://example.org/mmproj.gguf
--mmproj-offload / --no-mmproj-offload
-mmdev --mmproj-device = CUDA0
--image-min-tokens = 16
--image-max-tokens = 16
--rpc = host:50052
--mlock
--mmap / --no-mmap
-dio --direct-io / -ndio --no-direct-io
-lm --load-mode = mmap
--numa = distribute
-dev --device = CUDA0
--list-devices
-ot --override-tensor = exps=CPU
-cmoe --cpu-moe
-ncmoe --n-cpu-moe = 16
-ngl --gpu-layers --n-gpu-layers = 99
-sm --split-mode = layer
-ts --tensor-split = 3,1
-mg --main-gpu = 1
-fit --fit = on
-fitt --fit-target = 1024
-fitc --fit-ctx = 16
--check-tensors
--override-kv = a.b=int:1
--op-offload / --no-op-offload
--lora = file.txt
--lora-scaled = a.gguf:0.5
--control-vector = file.txt
--control-vector-scaled = a.gguf:0.5
--control-vector-layer-range = 1:4
--log-disable
--log-file = file.txt
--log-colors = off
-v --verbose --log-verbose
-lv --verbosity --log-verbosity = 16
--log-prefix / --no-log-prefix
--log-timestamps / --no-log-timestamps
--spec-draft-type-k -ctkd --cache-type-k-draft = q8_0
--spec-draft-type-v -ctvd --cache-type-v-draft = q8_0
""",
    "run chat": r"""
--server-base = http://localhost:8080
--display-prompt / --no-display-prompt
-co --color = auto
-sys --system-prompt = Be brief.
--show-timings / --no-show-timings
-sysf --system-prompt-file = file.txt
-st --single-turn
-mli --multiline-input
--image --audio --video = file.txt
--simple-io
""",
    "run chat embed": r"""
--verbose-prompt
""",
    "serve": r"""
-lcs --lookup-cache-static = file.txt
-lcd --lookup-cache-dynamic = file.txt
-cms --checkpoint-min-step = 16
--cache-idle-slots / --no-cache-idle-slots
--spm-infill
-np --parallel = 16
-cb --cont-batching / -nocb --no-cont-batching
--mtmd-batch-max-tokens = 16
-a --alias = name
--tags = fast
--host = 127.0.0.1
--port = 8080
--reuse-port
--path = .
--cors-origins = *
--cors-methods = GET
--cors-headers = X-Mine
--cors-credentials / --no-cors-credentials
--api-prefix = /llm
--ui-config --webui-config = {}
--ui-config-file --webui-config-file = file.txt
--ui-mcp-proxy --webui-mcp-proxy / --no-ui-mcp-proxy --no-webui-mcp-proxy
--tools = all
--tools-runtime = docker:debian
--mcp-servers-config = file.txt
--mcp-servers-json = {}
-ag --agent / -no-ag --no-agent
--ui --webui / --no-ui --no-webui
--embedding --embeddings
--rerank --reranking
--api-key = secret
--api-key-file = file.txt
--ssl-key-file = file.txt
--ssl-cert-file = file.txt
-to --timeout = 600
--sse-ping-interval = 16
--threads-http = 16
--cache-prompt / --no-cache-prompt
--cache-reuse = 16
--metrics
--props
--slots / --no-slots
--slot-save-path = .
--media-path = .
--models-dir = .
--models-preset = preset.ini
--models-max = 16
--models-autoload / --no-models-autoload
--prefill-assistant / --no-prefill-assistant
-sps --slot-prompt-similarity = 0.5
--lora-init-without-apply
--sleep-idle-seconds = 1
--spec-ngram-size-n = 16
--spec-ngram-size-m = 16
--spec-ngram-min-hits = 16
--fim-qwen-1.5b-default
--fim-qwen-3b-default
--fim-qwen-7b-default
--fim-qwen-7b-spec
--fim-qwen-14b-spec
--fim-qwen-30b-default
""",
    "serve run chat": r"""
-ctxcp --ctx-checkpoints --swa-checkpoints = 16
-cram --cache-ram = 16
-r --reverse-prompt = User:
-sp --special
--mmproj-auto / --no-mmproj --no-mmproj-auto
--chat-template-kwargs = {"enable_thinking": false}
--jinja / --no-jinja
--reasoning-format = deepseek
-rea --reasoning = off
--reasoning-effort = low
--reasoning-budget = 100
--reasoning-budget-message = Enough.
--reasoning-preserve / --no-reasoning-preserve
--chat-template = chatml
--chat-template-file = 1
--skip-chat-parsing / --no-skip-chat-parsing
--log-prompts-dir = logs
--spec-draft-hf -hfd -hfrd --hf-repo-draft = org/repo:Q4_K_M
--spec-draft-threads -td --threads-draft = 16
--spec-draft-threads-batch -tbd --threads-batch-draft = 16
--spec-draft-cpu-mask -Cd --cpu-mask-draft = 0xff
--spec-draft-cpu-range -Crd --cpu-range-draft = 0-3
--spec-draft-cpu-strict --cpu-strict-draft = 1
--spec-draft-prio --prio-draft = 16
--spec-draft-poll --poll-draft = 1
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft = 0xff
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft = 1
--spec-draft-prio-batch --prio-batch-draft = 16
--spec-draft-poll-batch --poll-batch-draft = 1
--spec-draft-override-tensor -otd --override-tensor-draft = exps=CPU
--spec-draft-cpu-moe -cmoed --cpu-moe-draft
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft = 16
--spec-draft-n-max = 16
--spec-draft-n-min = 16
--spec-draft-p-split --draft-p-split = 0.1
--spec-draft-p-min --draft-p-min = 0.1
--spec-draft-backend-sampling / --no-spec-draft-backend-sampling
--spec-draft-device -devd --device-draft = CUDA0
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft = 16
--spec-draft-model -md --model-draft = file.txt
--spec-type = draft-mtp,ngram-mod
--spec-ngram-mod-n-min = 16
--spec-ngram-mod-n-max = 16
--spec-ngram-mod-n-match = 16
--spec-ngram-simple-size-n = 16
--spec-ngram-simple-size-m = 16
--spec-ngram-simple-min-hits = 16
--spec-ngram-map-k-size-n = 16
--spec-ngram-map-k-size-m = 16
--spec-ngram-map-k-min-hits = 16
--spec-ngram-map-k4v-size-n = 16
--spec-ngram-map-k4v-size-m = 16
--spec-ngram-map-k4v-min-hits = 16
--draft --draft-n --draft-max = 16
--draft-min --draft-n-min = 16
--gpt-oss-20b-default
--gpt-oss-120b-default
--vision-gemma-4b-default
--vision-gemma-12b-default
--spec-default
""",
    "serve perplexity": r"""
-kvu --kv-unified / -no-kvu --no-kv-unified
""",
    "serve run chat perplexity imatrix": r"""
--context-shift / --no-context-shift
""",
    "perplexity imatrix": r"""
--chunks = 16
""",
    "run chat perplexity imatrix embed": r"""
-p --prompt = Hello
-f --file = file.txt
-bf --binary-file = file.txt
""",
    "run": r"""
-ptc --print-token-count = 16
--prompt-cache = file.txt
--prompt-cache-all
--prompt-cache-ro
-cnv --conversation / -no-cnv --no-conversation
-i --interactive
-if --interactive-first
--in-prefix-bos
--in-prefix = x
--in-suffix = x
-gan --grp-attn-n = 16
-gaw --grp-attn-w = 16
""",
    "serve run chat perplexity embed": r"""
--warmup / --no-warmup
""",
    "serve embed": r"""
--pooling = mean
--embd-normalize = 2
--embd-gemma-default
""",
    f"{COMMON} tokenize": r"""
-m --model = file.txt
-mu --model-url = https://example.org/model.gguf
-dr --docker-repo = gemma3
-hf -hfr --hf-repo = org/repo:Q4_K_M
-hff --hf-file = model.gguf
-hft --hf-token = hf_token
--offline
""",
    "run chat imatrix": r"""
-o --output --output-file = file.txt
""",
}
