"""Make the golden of tiny Parakeet models with transformers: encoder rows, and tokens with their frames.

python -m tests.goldens.make_parakeet           (from the project's root, in the environment of make.py)
"""

import numpy as np
import torch
import transformers

from tests.cases.parakeet import BLANK, DURATIONS, N_MELS, checkpoint, config, waveform
from tests.goldens.make import HERE

SECONDS = 10.0


def model(kind):
    """Return the model of a decoder type with the weights of the tiny checkpoint."""
    values = {key: value for key, value in config(kind).items() if key != "architectures"}
    encoder = transformers.ParakeetEncoderConfig(**values.pop("encoder_config"))
    own = getattr(transformers, f"Parakeet{kind.upper()}Config")(encoder_config=encoder, **values)
    made = getattr(transformers, f"ParakeetFor{kind.upper()}")(own).eval()
    state = {name: torch.from_numpy(array.copy()) for name, array in checkpoint(kind).items()}
    made.load_state_dict({name: one.long() if name.endswith("tracked") else one for name, one in state.items()})
    return made


def main():
    extractor = transformers.ParakeetFeatureExtractor(feature_size=N_MELS)
    features = extractor(waveform(SECONDS), sampling_rate=16000, return_tensors="pt")
    out = {}
    for kind in ("ctc", "rnnt", "tdt"):
        made = model(kind)
        with torch.no_grad():
            rows = made.encoder(features["input_features"], features["attention_mask"])
            valid = rows.attention_mask[0].bool()
            rows = rows.last_hidden_state if kind == "ctc" else made.encoder_projector(rows.last_hidden_state)
            out[f"{kind} rows"] = rows[0][valid].numpy()
            if kind != "ctc":
                made.generation_config.decoder_start_token_id = BLANK
            if kind == "tdt":  # as generation_config.json of the published models has it
                made.generation_config.suppress_tokens = list(range(BLANK + 1, BLANK + 1 + len(DURATIONS)))
            found = made.generate(**features)
        if kind == "ctc":
            ids = found[0][valid].tolist()
            firsts = [i for i, one in enumerate(ids) if one != BLANK and (i == 0 or ids[i - 1] != one)]
            tokens, spans = [ids[i] for i in firsts], None
        else:
            ids, steps = found.sequences[0].tolist(), found.durations[0].tolist()
            at = np.cumsum(steps) - steps
            kept = [i for i in range(1, len(ids)) if ids[i] != BLANK and at[i] < int(valid.sum())]
            tokens, firsts = [ids[i] for i in kept], [int(at[i]) for i in kept]
            spans = [steps[i] for i in kept]
        out |= {f"{kind} tokens": np.array(tokens), f"{kind} frames": np.array(firsts)}
        out |= {} if kind != "tdt" else {"tdt spans": np.array(spans)}
        print(kind, out[f"{kind} rows"].shape, len(tokens), sorted(set(tokens)), firsts[:12])
    np.savez_compressed(HERE / "parakeet.npz", **out)


if __name__ == "__main__":
    main()
