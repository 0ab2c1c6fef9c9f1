#!/usr/bin/env python3
"""Check an exported GGUF without llama.cpp: reads nothing but the file, computes in numpy.

    python check.py                             # continue some prompts, greedily
    python check.py --prompt "And it came"      # continue this one
    python check.py --work ~/.cache/autoplace-demo
        # also: is the tokenization that of SentencePiece, and what is the validation loss?

It shares no code with train.py, so that the two can disagree. The tokenizer is
the merge loop of llama.cpp's SPM vocabulary; the forward pass is its `llama`
graph. llama.cpp also rounds activations to 8 bits, so its logits differ a little.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

MODEL = Path(__file__).resolve().parent / "autoplace-demo-q8_0.gguf"
PROMPTS = ["In the beginning", "And the king said unto his servants,", "Blessed is the man that"]


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in reader.fields.items()}
        self.weights = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors
        }
        self.pieces = self.meta["tokenizer.ggml.tokens"]
        self.scores = self.meta["tokenizer.ggml.scores"]
        self.types = self.meta["tokenizer.ggml.token_type"]
        self.ids = {piece: id for id, piece in enumerate(self.pieces)}
        self.bos = self.meta["tokenizer.ggml.bos_token_id"]
        self.eos = self.meta["tokenizer.ggml.eos_token_id"]

    def encode(self, text):
        """Merge the adjacent pair with the best score (of equal ones the leftmost) until no pair is left."""
        symbols = list((" " + text).replace(" ", "\u2581"))
        scores = [self.merge_score(symbols, i) for i in range(len(symbols))]
        while (best := max(scores)) > -np.inf:
            at = scores.index(best)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            del scores[at]
            for i in range(max(at - 1, 0), at + 1):
                scores[i] = self.merge_score(symbols, i)
        return [id for symbol in symbols for id in self.symbol_ids(symbol)]

    def merge_score(self, symbols, i):
        """The score of symbol i joined to the next symbol; -inf if the result is not a piece."""
        id = self.ids.get("".join(symbols[i : i + 2])) if i + 1 < len(symbols) else None
        return -np.inf if id is None else self.scores[id]

    def symbol_ids(self, symbol):
        if symbol in self.ids:
            return [self.ids[symbol]]
        return [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]

    def decode(self, ids):
        return b"".join(self.piece_bytes(id) for id in ids).decode(errors="replace")

    def piece_bytes(self, id):
        if self.types[id] == gguf.TokenType.BYTE:
            return bytes([int(self.pieces[id][3:5], 16)])
        if self.types[id] == gguf.TokenType.NORMAL:
            return self.pieces[id].replace("\u2581", " ").encode()
        return b""

    def norm(self, x, name):
        eps = self.meta["llama.attention.layer_norm_rms_epsilon"]
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * self.weights[name]

    def rope(self, x):
        """Rotate each adjacent pair as one complex number. x is [time, head, dim]."""
        pairs = self.meta["llama.rope.dimension_count"] // 2
        freq = self.meta["llama.rope.freq_base"] ** (-np.arange(pairs) / pairs)
        turn = np.exp(1j * np.arange(len(x))[:, None, None] * freq)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(np.float32)

    def attention(self, x, layer):
        heads = self.meta["llama.attention.head_count"]
        shared = heads // self.meta["llama.attention.head_count_kv"]
        dim = self.meta["llama.attention.key_length"]
        q, k, v = (
            (x @ self.weights[f"{layer}.attn_{n}.weight"].T).reshape(len(x), -1, dim) for n in "qkv"
        )
        q, k = self.rope(q), self.rope(k)
        future = np.triu(np.full((len(x), len(x)), -np.inf, dtype=np.float32), 1)
        mixed = [
            softmax(q[:, h] @ k[:, h // shared].T / np.sqrt(dim) + future) @ v[:, h // shared]
            for h in range(heads)
        ]
        return np.concatenate(mixed, axis=-1) @ self.weights[f"{layer}.attn_output.weight"].T

    def feed_forward(self, x, layer):
        gate = x @ self.weights[f"{layer}.ffn_gate.weight"].T
        up = x @ self.weights[f"{layer}.ffn_up.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{layer}.ffn_down.weight"].T

    def logits(self, ids):
        x = self.weights["token_embd.weight"][ids]
        for i in range(self.meta["llama.block_count"]):
            layer = f"blk.{i}"
            x = x + self.attention(self.norm(x, f"{layer}.attn_norm.weight"), layer)
            x = x + self.feed_forward(self.norm(x, f"{layer}.ffn_norm.weight"), layer)
        return self.norm(x, "output_norm.weight") @ self.weights["output.weight"].T

    def continue_text(self, prompt, count, choose):
        ids = [self.bos, *self.encode(prompt)]
        start = len(ids)
        while len(ids) < start + count:
            ids.append(choose(self.logits(ids)[-1]))
            if ids[-1] == self.eos:
                break
        return self.decode(ids[start:]), ids[-1] == self.eos


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def chooser(temperature, seed):
    """The function that picks the next token from the logits: the likeliest token at 0, otherwise a random one."""
    if temperature == 0:
        return lambda logits: int(np.argmax(logits))
    rng = np.random.default_rng(seed)
    return lambda logits: int(rng.choice(len(logits), p=softmax(logits / temperature)))


def check_tokenizer(model, work, passages):
    from sentencepiece import SentencePieceProcessor

    sp = SentencePieceProcessor(model_file=str(work / "tokenizer.model"))
    extra = [" ", "two  spaces", "line\n\nline ", "caf\u00e9 \u4e2d\U0001f600", "<s> 1234"]
    for text in [*passages, *extra]:
        if model.encode(text) != sp.encode(text):
            raise SystemExit(f"the GGUF does not encode {text!r} as SentencePiece does")
    print(f"tokenization agrees with SentencePiece on {len(passages)} passages and odd strings")


def validation_loss(model, passages):
    """Mean loss over the held-out text as one stream in windows of the context's length."""
    context = model.meta["llama.context_length"]
    stream = [id for p in passages for id in [model.bos, *model.encode(p), model.eos]]
    losses = []
    for start in range(0, len(stream) - context, context):
        window = stream[start : start + context + 1]
        chosen = softmax(model.logits(window[:-1]))[np.arange(context), window[1:]]
        losses.append(-np.log(chosen).mean())
    return np.mean(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--prompt", action="append", help="may be given more than once")
    parser.add_argument("--tokens", type=int, default=64, help="longest continuation")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default) is greedy")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--work", type=Path, help="train.py's work directory")
    args = parser.parse_args()
    model = Model(args.model)
    for prompt in args.prompt or PROMPTS:
        choose = chooser(args.temperature, args.seed)
        text, ended = model.continue_text(prompt, args.tokens, choose)
        print(f"{prompt}|{text}{' [eos]' if ended else ''}\n")
    if args.work:
        passages = (args.work / "text.txt").read_text().rstrip("\n").split("\n\n")
        held_out = passages[-(len(passages) // 50) :]
        check_tokenizer(model, args.work, held_out)
        print(f"validation loss of the file: {validation_loss(model, held_out):.4f}")


if __name__ == "__main__":
    main()
