"""Rows for single tools, as in `llama_arguments`. llama-bench and llama-quantize have tables of their own."""

from __future__ import annotations

ROWS: dict[str, str] = {
    "imatrix": r"""
--in-file = file.txt
-ofreq --output-frequency = 16
--output-format = gguf
--save-frequency = 16
--process-output
--ppl / --no-ppl
--chunk --from-chunk = 16
--show-statistics
--parse-special
""",
    "embed": r"""
--attention = causal
--embd-output-format = json
--embd-separator = ;
--cls-separator = ;
""",
    "perplexity": r"""
--hellaswag
--hellaswag-tasks = 16
--winogrande
--winogrande-tasks = 16
--multiple-choice
--multiple-choice-tasks = 16
--kl-divergence
--save-all-logits --kl-divergence-base = file.txt
--ppl-stride = 16
--ppl-output-type = 1
""",
    "other programs": r"""
-ns --sequences = 16
-fitp --fit-print = on
--mtp
--dflash
--eagle3
--context-file = file.txt
--chunk-size = 16
--chunk-separator = 1
--junk = 16
--pos = 16
-pps
-tgs
-npp = 1
-ntg = 1
-npl = 1
--positive-file = file.txt
--negative-file = file.txt
--pca-batch = 16
--pca-iter = 16
--method = 1
--output-format = gguf
--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft = 0-3
--tts-lang = file.txt
--tts-speaker-file = file.txt
--diffusion-steps = 16
--diffusion-visual
--diffusion-eps = 1
--diffusion-algorithm = 16
--diffusion-alg-temp = 1
--diffusion-block-length = 16
--diffusion-cfg-scale = 1
--diffusion-add-gumbel-noise = 1
-lr --learning-rate = 1
-lr-min --learning-rate-min = 1
-decay-epochs --learning-rate-decay-epochs = 1
-wd --weight-decay = 1
-val-split --val-split = 1
-epochs --epochs = 16
-opt --optimizer = 1
--check
--save-logits
--logits-output-dir = file.txt
--tensor-filter = 1
""",
    "tokenize": r"""
--ids
--stdin
--no-bos
--no-parse-special
--show-count
""",
}

# Rows of argument parsers of their own.
OWN_ROWS: dict[str, str] = {
    "bench": r"""
-h --help
-m --model = model.gguf
-hf -hfr --hf-repo = org/repo:Q4_K_M
-hff --hf-file = model.gguf
-hft --hf-token = hf_token
--offline
-p --n-prompt = 512
-n --n-gen = 128
-pg = 512,128
-d --n-depth = 0
-b --batch-size = 4
-ub --ubatch-size = 512
-ctk --cache-type-k = q8_0
-ctv --cache-type-v = f16
-dev --device = CUDA0
--list-devices
-t --threads = 4
-C --cpu-mask = 0xff
--cpu-strict = 1
--poll = 50
-ngl --n-gpu-layers = 99
-ncmoe --n-cpu-moe = 4
-rpc --rpc = host:50052
-sm --split-mode = layer
-lm --load-mode = mmap
-mg --main-gpu = 1
-nkvo --no-kv-offload = 1
--numa = distribute
-fa --flash-attn = 1
-mmp --mmap = 0
-dio --direct-io = 1
-embd --embeddings = 1
-nopo --no-op-offload = 1
--no-host = 1
-ts --tensor-split = 3,1
-ot --override-tensor = exps=CPU
-r --repetitions = 3
--prio = 1
--delay = 1
-o --output = json
-oe --output-err = md
-v --verbose
--progress
--no-warmup
-fitt --fit-target = 1024
-fitc --fit-ctx = 4096
""",
    "quantize": r"""
--allow-requantize
--leave-output-tensor
--pure
--imatrix = imatrix.gguf
--include-weights = attn_v
--exclude-weights = attn_v
--output-tensor-type = q6_k
--token-embedding-type = q6_k
--tensor-type = attn_v=q6_k
--tensor-type-file = types.txt
--prune-layers = 3,4
--keep-split
--override-kv = a.b=int:1
--dry-run
""",
}
