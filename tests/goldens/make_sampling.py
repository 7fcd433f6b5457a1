"""Records sampling.json: what the samplers of llama.cpp choose from given logits.

    pip install llama-cpp-python==0.3.36 numpy && PYTHONPATH=. python tests/goldens/make_sampling.py

No equal logits meet in a choice here: llama.cpp's sort leaves the order of those to the C++ library.
"""

import ctypes
import json
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

from tests.cases.sampling import golden_rows

NAMES = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
DEFAULTS = {
    "temperature": 0.8, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1, "min_keep": 0,
    "samplers": NAMES, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repeat_last_n": 64,
    "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "mirostat": 0,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "logit_bias": {},
}  # fmt: skip
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def settings(name, r):
    """Values at which a sampler acts."""
    match name:
        case "penalties":
            amounts = {"repeat_penalty": r.uniform(0.7, 1.6), "presence_penalty": r.uniform(-1, 2)}
            window = {"repeat_last_n": int(r.choice([1, 5, 64, -1]))}
            return {**amounts, "frequency_penalty": r.uniform(-0.5, 1), **window}
        case "dry":
            lengths = {"dry_allowed_length": r.randint(0, 4), "dry_penalty_last_n": int(r.choice([10, 64, -1]))}
            return {"dry_multiplier": r.uniform(0.1, 3), "dry_base": r.uniform(1, 2.5), **lengths}
        case "top_n_sigma":
            return {"top_n_sigma": r.uniform(0.2, 3)}
        case "top_k":
            return {"top_k": int(r.choice([1, 2, 7, 40, 200, 1000]))}
        case "typ_p":
            return {"typical_p": r.uniform(0.1, 0.99)}
        case "top_p":
            return {"top_p": r.uniform(0.05, 0.99)}
        case "min_p":
            return {"min_p": r.uniform(0.001, 0.9)}
        case "xtc":
            return {"xtc_probability": r.uniform(0.2, 1), "xtc_threshold": r.uniform(0.01, 0.5)}
    spread = {"dynatemp_range": r.choice([0.0, 0.0, 0.4]), "dynatemp_exponent": r.uniform(0.3, 2)}
    return {"temperature": r.choice([0.0, r.uniform(0.1, 1), r.uniform(1, 3)]), **spread}


def parameters(kind, r):
    """Each sampler alone, mirostat, the defaults with changes, and samplers in any order."""
    if kind < len(NAMES):
        return {**OFF, **settings(NAMES[kind], r)}
    if kind == 9:
        tuning = {"mirostat_tau": r.uniform(0.5, 7), "mirostat_eta": r.uniform(0.01, 0.5)}
        return {"mirostat": r.randint(1, 3), **tuning, "temperature": r.choice([0.8, 1.7])}
    names = [str(name) for name in r.permutation(NAMES)[: r.randint(1, 7)]]
    if "typ_p" in names and "top_n_sigma" in names:
        names.remove("top_n_sigma")  # minus infinities make llama.cpp's entropy NaN
    values = {key: value for name in names for key, value in settings(name, r).items()}
    if "typ_p" in names and values.get("temperature") == 0.0:
        values["temperature"] = 0.5
    return values if kind == 10 else {**values, "samplers": names}


def chain(values, n_vocab):
    """The chain that llama.cpp's own programs build."""
    p = {**DEFAULTS, **values}
    made = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    steps = []
    if p["logit_bias"]:
        biases = [llama.llama_logit_bias(int(token), bias) for token, bias in p["logit_bias"].items()]
        array = (llama.llama_logit_bias * len(biases))(*biases)
        steps.append(llama.llama_sampler_init_logit_bias(n_vocab, len(biases), array))
    seed, keep = p["seed"], p["min_keep"]
    repeat_n, dry_n = (1_000_000 if p[name] < 0 else p[name] for name in ("repeat_last_n", "dry_penalty_last_n"))
    amounts = p["repeat_penalty"], p["frequency_penalty"], p["presence_penalty"]
    growth = p["dry_multiplier"], p["dry_base"], p["dry_allowed_length"]
    build = {
        "penalties": lambda: llama.llama_sampler_init_penalties(n_vocab, repeat_n, *amounts),
        "dry": lambda: llama.llama_sampler_init_dry(None, *growth, dry_n, None, 0),
        "top_n_sigma": lambda: llama.llama_sampler_init_top_n_sigma(p["top_n_sigma"]),
        "top_k": lambda: llama.llama_sampler_init_top_k(p["top_k"]),
        "typ_p": lambda: llama.llama_sampler_init_typical(p["typical_p"], keep),
        "top_p": lambda: llama.llama_sampler_init_top_p(p["top_p"], keep),
        "min_p": lambda: llama.llama_sampler_init_min_p(p["min_p"], keep),
        "xtc": lambda: llama.llama_sampler_init_xtc(p["xtc_probability"], p["xtc_threshold"], keep, seed),
        "temperature": lambda: llama.llama_sampler_init_temp_ext(
            p["temperature"], p["dynatemp_range"], p["dynatemp_exponent"]
        ),
    }
    tuning = seed, p["mirostat_tau"], p["mirostat_eta"]
    if p["mirostat"]:
        steps.append(llama.llama_sampler_init_temp(p["temperature"]))
    else:
        steps += [build[name]() for name in p["samplers"]]
    match p["mirostat"]:
        case 0:
            steps.append(llama.llama_sampler_init_dist(seed))
        case 1:
            steps.append(llama.llama_sampler_init_mirostat(n_vocab, *tuning, 100))
        case 2:
            steps.append(llama.llama_sampler_init_mirostat_v2(*tuning))
    for step in steps:
        llama.llama_sampler_chain_add(made, step)
    return made


def choose(case, n):
    made, tokens = chain(case["params"], case["n_vocab"]), []
    for token in case["history"]:
        llama.llama_sampler_accept(made, token)
    for row in golden_rows(case["n_vocab"], case["row_seed"], case["scale"], n):
        data = np.zeros(len(row), CANDIDATE)
        data["id"], data["logit"] = np.arange(len(row)), row
        pointer = data.ctypes.data_as(llama.llama_token_data_p)
        array = llama.llama_token_data_array(pointer, len(row), -1, False)
        llama.llama_sampler_apply(made, ctypes.byref(array))
        tokens.append(int(array.data[array.selected].id))
        llama.llama_sampler_accept(made, tokens[-1])
    llama.llama_sampler_free(made)
    return tokens


def make(i):
    r = np.random.RandomState(i)
    n_vocab = 49152 if i % 8 == 0 else int(r.choice([2, 20, 300, 1500]))
    params = {k: round(v, 4) if isinstance(v, float) else v for k, v in parameters(i % 13 % 12, r).items()}
    if r.randint(4) == 0:
        params["min_keep"] = int(r.choice([1, 3, 30]))
    if r.randint(5) == 0:
        params["logit_bias"] = {str(r.randint(n_vocab)): round(r.uniform(-9, 9), 3) for _ in range(3)}
    params["seed"] = int(r.randint(2**31))
    history = r.randint(0, min(n_vocab, 8), int(r.choice([0, 1, 5, 80]))).tolist()
    case = {"n_vocab": n_vocab, "row_seed": i, "scale": float(r.choice([0.25, 0.5, 1.0])), "history": history}
    case["params"] = params
    return {**case, "tokens": choose(case, 3 if n_vocab == 49152 else 10)}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(make(i), separators=(", ", ": "), default=lambda v: v.item()) for i in range(130))
    Path(__file__).with_name("sampling.json").write_text(f"[\n{lines}\n]\n")
