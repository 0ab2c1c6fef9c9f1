#!/usr/bin/env python3
"""Train and export autoplace's demo model: a 4M-parameter llama on the King James Bible.

    python train.py                 # all the steps, resuming from the work directory
    python train.py --export-only   # only write the GGUF from the latest checkpoint

Steps: text -> tokenizer -> tokens -> train -> export. Every step leaves its
result in the work directory and is skipped when that result is already there;
delete the work directory to start over. README.md says where the text comes
from and what the committed model measured.
"""

import argparse
import functools
import hashlib
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import optax
import sentencepiece as spm

HERE = Path(__file__).resolve().parent
SOURCE_PACKAGE = "bible-kjv-text"
LICENSE = "MIT OR Apache-2.0"  # the repository's
VERSES, CHAPTERS = 31102, 1189


@dataclass(frozen=True)
class Arch:
    """The hyperparameters that llama.cpp reads back from the GGUF."""

    vocab: int = 1024
    context: int = 512
    layers: int = 6
    embd: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-5


ARCH = Arch()


# --- step 1: text ------------------------------------------------------------


def read_chapters():
    """The Bible as a list of chapters, each a list of verses, without any numbering."""
    command = ["bible", "-f", "ge1:1-re22:21"]
    lines = subprocess.run(command, check=True, capture_output=True, encoding="ascii").stdout
    chapters = {}
    for line in lines.splitlines():
        chapter, verse = re.fullmatch(r"([123]?[A-Za-z]+\d+):\d+ (.+)", line).groups()
        chapters.setdefault(chapter, []).append(" ".join(verse.split()))
    found = len(chapters), sum(map(len, chapters.values()))
    if found != (CHAPTERS, VERSES):
        raise SystemExit(f"`bible` printed {found} chapters and verses, not {(CHAPTERS, VERSES)}")
    return list(chapters.values())


def group(parts, separator, length):
    """Join parts into runs that end at a full stop once they are `length` characters long."""
    runs, run = [], ""
    for part in parts:
        run = f"{run}{separator}{part}" if run else part
        if len(run) >= length and run.endswith("."):
            runs.append(run)
            run = ""
    return runs + [run] if run else runs


def make_passages(chapters):
    """Prose documents of a few paragraphs, mostly within the context, none across a chapter's end.

    The source has no paragraph marks, so paragraphs are runs of verses. Their
    newlines teach the model the one byte token that prompts commonly contain.
    """
    passages = []
    for verses in chapters:
        passages += group(group(verses, " ", 350), "\n", 1000)
    return passages


def prepare_text(work):
    path = work / "text.txt"
    if not path.exists():
        write_atomically(path, ("\n\n".join(make_passages(read_chapters())) + "\n").encode())
    passages = path.read_text().rstrip("\n").split("\n\n")
    held_out = len(passages) // 50  # the last 2 %
    return passages[:-held_out], passages[-held_out:]


# --- step 2: tokenizer -------------------------------------------------------


def prepare_tokenizer(work, passages):
    """SentencePiece BPE set up as for llama: no normalisation, dummy prefix, byte fallback."""
    path = work / "tokenizer.model"
    if not path.exists():
        partial = work / "tokenizer.partial"
        lines = (line for passage in passages for line in passage.split("\n"))
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_prefix=str(partial),
            model_type="bpe",
            vocab_size=ARCH.vocab,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            split_digits=True,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
        os.replace(f"{partial}.model", path)
    return spm.SentencePieceProcessor(model_file=str(path))


# --- step 3: tokens ----------------------------------------------------------


def encode(sp, passages):
    ids = [id for p in passages for id in [sp.bos_id(), *sp.encode(p), sp.eos_id()]]
    return np.array(ids, dtype=np.int32)


def sample_batch(tokens, args, step):
    """Random windows. The seed is the step, so that a resumed run draws the same windows."""
    rng = np.random.default_rng([args.seed, step])
    starts = rng.integers(0, len(tokens) - ARCH.context, size=args.batch)
    return tokens[starts[:, None] + np.arange(ARCH.context + 1)]


def whole_windows(tokens):
    """All tokens as consecutive windows, for the validation loss."""
    starts = np.arange(0, len(tokens) - ARCH.context, ARCH.context)
    return tokens[starts[:, None] + np.arange(ARCH.context + 1)]


# --- step 4: train -----------------------------------------------------------


def tensor_shapes():
    """The name and shape of every weight. Names are GGUF's, and matrices are [out, in]."""
    a = ARCH
    shapes = {"token_embd.weight": (a.vocab, a.embd)}
    for i in range(a.layers):
        layer = {
            "attn_norm": (a.embd,),
            "attn_q": (a.heads * a.head_dim, a.embd),
            "attn_k": (a.kv_heads * a.head_dim, a.embd),
            "attn_v": (a.kv_heads * a.head_dim, a.embd),
            "attn_output": (a.embd, a.heads * a.head_dim),
            "ffn_norm": (a.embd,),
            "ffn_gate": (a.ff, a.embd),
            "ffn_up": (a.ff, a.embd),
            "ffn_down": (a.embd, a.ff),
        }
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"output_norm.weight": (a.embd,), "output.weight": (a.vocab, a.embd)}


def init_params(seed):
    rng = np.random.default_rng(seed)
    params = {}
    for name, shape in tensor_shapes().items():
        # As in GPT-2, the matrices that write into the residual stream start with small numbers.
        into_residual = "attn_output" in name or "ffn_down" in name
        scale = 0.02 / np.sqrt(2 * ARCH.layers) if into_residual else 0.02
        value = rng.normal(0, scale, shape) if len(shape) == 2 else np.ones(shape)
        params[name] = jnp.asarray(value, jnp.float32)
    return params


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + ARCH.eps) * weight


def rope(x):
    """Rotate adjacent pairs (2i, 2i+1) as llama.cpp does for `llama`, so that nothing is permuted."""
    half = ARCH.head_dim // 2
    freq = ARCH.rope_base ** (-np.arange(half, dtype=np.float32) / half)
    angle = np.arange(x.shape[1], dtype=np.float32)[:, None, None] * freq
    cos, sin = np.cos(angle), np.sin(angle)
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def attention(x, weight):
    batch, time_, _ = x.shape
    q, k, v = (
        (x @ weight(f"attn_{n}").T).reshape(batch, time_, -1, ARCH.head_dim) for n in "qkv"
    )
    q, k = rope(q), rope(k)
    # Query head h reads key/value head h // (heads / kv_heads).
    k, v = (jnp.repeat(t, ARCH.heads // ARCH.kv_heads, axis=2) for t in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(ARCH.head_dim)
    causal = np.tril(np.ones((time_, time_), dtype=bool))
    scores = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(batch, time_, -1)
    return mixed @ weight("attn_output").T


def feed_forward(x, weight):
    gated = jax.nn.silu(x @ weight("ffn_gate").T) * (x @ weight("ffn_up").T)
    return gated @ weight("ffn_down").T


def forward(params, tokens):
    x = params["token_embd.weight"][tokens]
    for i in range(ARCH.layers):
        weight = lambda name, i=i: params[f"blk.{i}.{name}.weight"]
        x = x + attention(rms_norm(x, weight("attn_norm")), weight)
        x = x + feed_forward(rms_norm(x, weight("ffn_norm")), weight)
    return rms_norm(x, params["output_norm.weight"]) @ params["output.weight"].T


def loss_fn(params, windows):
    logits = forward(params, windows[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()


def make_optimizer(args):
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=args.lr,
        warmup_steps=min(100, args.steps // 10),
        decay_steps=args.steps,
        end_value=args.lr / 20,
    )
    matrices_only = {name: len(shape) == 2 for name, shape in tensor_shapes().items()}
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1, mask=matrices_only),
    )


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def train_step(optimizer, params, state, windows):
    loss, grads = jax.value_and_grad(loss_fn)(params, windows)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def validation_loss(params, tokens):
    return float(np.mean([float(eval_loss(params, w[None])) for w in whole_windows(tokens)]))


eval_loss = jax.jit(loss_fn)


def save_checkpoint(work, params, state, progress):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((params, state))]
    partial = work / "checkpoint.partial.npz"
    np.savez(partial, progress=json.dumps(progress), **{f"{i:04}": x for i, x in enumerate(leaves)})
    os.replace(partial, work / "checkpoint.npz")


def load_checkpoint(work, args):
    """The latest checkpoint, or the start of a new run."""
    path = work / "checkpoint.npz"
    if args.export_only and not path.exists():
        raise SystemExit(f"there is no {path} to export")
    run = {"seed": args.seed, "steps": args.steps, "batch": args.batch, "lr": args.lr}
    params = init_params(args.seed)
    state = make_optimizer(args).init(params)
    if not path.exists():
        return params, state, {"run": run, "step": 0, "seconds": 0.0, "history": []}
    with np.load(path) as saved:
        progress = json.loads(str(saved["progress"]))
        leaves = [jnp.asarray(saved[name]) for name in sorted(saved.files) if name != "progress"]
    if progress["run"] != run and not args.export_only:
        raise SystemExit(f"{path} is of a run with {progress['run']}, not {run}")
    params, state = jax.tree.unflatten(jax.tree.structure((params, state)), leaves)
    return params, state, progress


def train(work, args, train_tokens, valid_tokens):
    params, state, progress = load_checkpoint(work, args)
    optimizer = make_optimizer(args)
    losses, started = [], time.monotonic() - progress["seconds"]
    while progress["step"] < args.steps:
        windows = sample_batch(train_tokens, args, progress["step"])
        params, state, loss = train_step(optimizer, params, state, windows)
        losses.append(float(loss))
        progress["step"] += 1
        progress["seconds"] = time.monotonic() - started
        if progress["step"] % args.every == 0 or progress["step"] == args.steps:
            record = {
                "step": progress["step"],
                "seconds": round(progress["seconds"]),
                "train_loss": round(float(np.mean(losses)), 4),
                "valid_loss": round(validation_loss(params, valid_tokens), 4),
            }
            print(json.dumps(record), flush=True)
            progress["history"].append(record)
            save_checkpoint(work, params, state, progress)
            losses = []
    return params, progress


# --- step 5: export ----------------------------------------------------------


def add_metadata(writer, progress):
    a, run = ARCH, progress["run"]
    writer.add_name("autoplace demo")
    writer.add_description(
        f"A tiny demonstration model trained by autoplace's examples/model/train.py on the King "
        f"James Version (Debian package {SOURCE_PACKAGE}): seed {run['seed']}, "
        f"{progress['step']} steps of {run['batch']} x {a.context} tokens."
    )
    writer.add_license(LICENSE)
    writer.add_languages(["en"])
    writer.add_dataset_count(1)
    writer.add_dataset_name(0, "King James Version of the Bible (public domain)")
    writer.add_dataset_organization(0, f"Debian package {SOURCE_PACKAGE}")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(a.context)
    writer.add_embedding_length(a.embd)
    writer.add_block_count(a.layers)
    writer.add_feed_forward_length(a.ff)
    writer.add_head_count(a.heads)
    writer.add_head_count_kv(a.kv_heads)
    writer.add_key_length(a.head_dim)
    writer.add_value_length(a.head_dim)
    writer.add_layer_norm_rms_eps(a.eps)
    writer.add_rope_dimension_count(a.head_dim)
    writer.add_rope_freq_base(a.rope_base)
    writer.add_vocab_size(a.vocab)


def token_type(sp, id):
    if sp.is_unknown(id):
        return gguf.TokenType.UNKNOWN
    if sp.is_control(id):
        return gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if sp.is_byte(id) else gguf.TokenType.NORMAL


def add_tokenizer(writer, sp):
    ids = range(sp.get_piece_size())
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([sp.id_to_piece(id) for id in ids])
    writer.add_token_scores([sp.get_score(id) for id in ids])
    writer.add_token_types([token_type(sp, id) for id in ids])
    writer.add_unk_token_id(sp.unk_id())
    writer.add_bos_token_id(sp.bos_id())
    writer.add_eos_token_id(sp.eos_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def export(path, params, sp, progress):
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    add_metadata(writer, progress)
    add_tokenizer(writer, sp)
    for name, value in params.items():
        value = np.asarray(value)
        # llama.cpp keeps the vectors of norms in F32, whatever the type of the file is.
        kind = gguf.GGMLQuantizationType.Q8_0 if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, path)


# --- the whole ---------------------------------------------------------------


def write_atomically(path, data):
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cache = Path.home() / ".cache" / "autoplace-demo"
    parser.add_argument("--work", type=Path, default=cache, help="text, tokenizer, checkpoints")
    parser.add_argument("--out", type=Path, default=HERE / "autoplace-demo-q8_0.gguf")
    parser.add_argument("--export-only", action="store_true", help="export the latest checkpoint")
    parser.add_argument("--seed", type=int, default=1611)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=4, help="windows a step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    return parser.parse_args()


def main():
    args = parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    train_text, valid_text = prepare_text(args.work)
    sp = prepare_tokenizer(args.work, train_text)
    train_tokens, valid_tokens = encode(sp, train_text), encode(sp, valid_text)
    print(f"text sha256 {sha256(args.work / 'text.txt')}, "
          f"{len(train_tokens)} training and {len(valid_tokens)} validation tokens", flush=True)
    if args.export_only:
        params, _, progress = load_checkpoint(args.work, args)
    else:
        params, progress = train(args.work, args, train_tokens, valid_tokens)
    export(args.out, params, sp, progress)
    print(f"{args.out}: {args.out.stat().st_size} bytes, sha256 {sha256(args.out)}")


if __name__ == "__main__":
    main()
