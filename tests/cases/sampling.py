"""Samplers as their papers tell them: plain Python in float64, one candidate after the other. And rows to try them on.

A filter takes [(token, logit), ...] and gives what it keeps, in the order in which a draw walks it, together with how
close the closest decision was: cases nearer than float32 can tell are not for comparing.
"""

import math

import numpy as np


def golden_rows(n_vocab, seed, scale, n):
    """Logits that are the same float32 on every machine: integers, and products of them rounded once each."""
    random = np.random.RandomState(seed)
    for _ in range(n):
        x = (random.randint(-(2**23), 2**23, n_vocab) / np.float32(2**22)).astype(np.float32)
        yield x * x * x * np.float32(scale)


def by_logit(candidates):
    return sorted(candidates, key=lambda c: -c[1])  # stable: equal ones keep their order


def softmax(candidates):
    top = max(logit for _, logit in candidates)
    weights = [math.exp(logit - top) for _, logit in candidates]
    total = sum(weights)
    return [w / total for w in weights]


def top_k(candidates, k):
    return by_logit(candidates)[:k], math.inf


def top_p(candidates, p, min_keep=0):
    candidates = by_logit(candidates)
    reached, margin = 0.0, math.inf
    for n, probability in enumerate(softmax(candidates), 1):
        reached += probability
        margin = min(margin, abs(reached - p))
        if reached >= p and n >= min_keep:
            return candidates[:n], margin
    return candidates, margin


def min_p(candidates, p, min_keep=0):
    probabilities = softmax(candidates)
    bound = p * max(probabilities)
    margin = min(abs(math.log(q / bound)) for q in probabilities)
    kept = [c for c, q in zip(candidates, probabilities, strict=True) if q >= bound]
    return (kept if len(kept) >= min_keep else by_logit(candidates)[:min_keep]), margin


def typical(candidates, p, min_keep=0):
    candidates = by_logit(candidates)
    probabilities = softmax(candidates)
    entropy = -sum(q * math.log(q) for q in probabilities)
    scores = [abs(-math.log(q) - entropy) for q in probabilities]
    order = sorted(range(len(candidates)), key=scores.__getitem__)
    margin = min((b - a for a, b in zip(sorted(scores), sorted(scores)[1:], strict=False)), default=math.inf)
    reached = 0.0
    for n, index in enumerate(order, 1):
        reached += probabilities[index]
        margin = min(margin, abs(reached - p))
        if reached > p and n >= min_keep:
            break
    return [candidates[index] for index in order[:n]], margin


def top_n_sigma(candidates, n):
    logits = [logit for _, logit in candidates]
    mean = sum(logits) / len(logits)
    sigma = math.sqrt(sum((logit - mean) ** 2 for logit in logits) / len(logits))
    bound = max(logits) - n * sigma
    margin = min(abs(logit - bound) for logit in logits)
    return [(token, logit if logit >= bound else -math.inf) for token, logit in candidates], margin


def xtc(candidates, threshold, min_keep=0):
    candidates = by_logit(candidates)
    probabilities = softmax(candidates)
    margin = min(abs(q - threshold) for q in probabilities)
    n_above = sum(q >= threshold for q in probabilities)
    if n_above < 2 or len(candidates) - (n_above - 1) < min_keep:
        return candidates, margin
    return candidates[n_above - 1 :], margin


def dynamic_temperature(candidates, temperature, spread, exponent):
    probabilities = [q for q in softmax(candidates) if q > 0.0]
    entropy = -sum(q * math.log(q) for q in probabilities)
    low, high = max(0.0, temperature - spread), temperature + spread
    return low + (high - low) * (entropy / math.log(len(candidates))) ** exponent


def penalized(logits, history, last_n, repeat, frequency, presence):
    window = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    out = [float(x) for x in logits]
    for token in set(window):
        out[token] = out[token] * repeat if out[token] <= 0 else out[token] / repeat
        out[token] -= window.count(token) * frequency + presence
    return out


def dry(logits, history, last_n, multiplier, base, allowed, breakers):
    """For each token: the longest end of the history that stood before it earlier, up to the last breaker."""
    window = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    out = [float(x) for x in logits]
    limit = len(window)
    for start in reversed(range(len(window))):
        ends = [len(b) for b in breakers if tuple(window[start : start + len(b)]) == b]
        if ends:
            limit = len(window) - start - max(ends)
            break
    if len(window) <= allowed or limit < allowed:
        return out
    longest = {}
    for end in range(1, len(window)):
        n = 0
        while n < min(end, limit) and window[end - 1 - n] == window[-1 - n]:
            n += 1
        if n >= allowed:
            longest[window[end]] = max(longest.get(window[end], 0), n)
    for token, n in longest.items():
        if (token,) not in breakers:
            out[token] -= multiplier * base ** (n - allowed)
    return out
