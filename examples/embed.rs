//! Embeds lines of text and prints their similarity to a query, or the vectors as JSON.
//!
//!     cargo run --release --example embed -- -m model.gguf -q "who pulls the sea?" -f lines.txt

use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use autoplace::embed::cosine_similarity;
use autoplace::memory::Pooling;
use autoplace::plan::Context;
use autoplace::{Embedder, Model};
use autoplace_examples::DEMO_MODEL;
use clap::{Parser, ValueEnum};

/// Embeds texts with a local model, placed so that it fits.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// GGUF file; for a split model, its first part
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// Texts
    texts: Vec<String>,
    /// A file of texts, one on each line
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Sorts the texts by similarity to this one
    #[arg(short, long, value_name = "TEXT")]
    query: Option<String>,
    /// How the token vectors of a text are combined; `model` uses the model's own pooling
    #[arg(long, value_enum, default_value_t = Kind::Model)]
    pooling: Kind,
    /// Scores the texts with a reranker instead of comparing vectors
    #[arg(long, requires = "query", conflicts_with_all = ["pooling", "json"])]
    rerank: bool,
    /// Tokens of the longest text [default: 2048, or the model's training context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// Truncates longer texts instead of refusing them
    #[arg(long)]
    truncate: bool,
    /// Prints a JSON array of vectors, the query's first
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Model,
    Mean,
    Cls,
    Last,
}

fn main() -> ExitCode {
    autoplace_examples::run(|args: Args| run(&args).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let mut texts = args.texts.clone();
    if let Some(file) = &args.file {
        let lines = std::fs::read_to_string(file);
        let lines = lines.with_context(|| format!("cannot read {}", file.display()))?;
        texts.extend(lines.lines().map(str::to_owned));
    }
    ensure!(!texts.is_empty(), "no texts: name some, or a file with -f");
    let pooling = match args.pooling {
        _ if args.rerank => Pooling::Rank,
        Kind::Model => Pooling::Model,
        Kind::Mean => Pooling::Mean,
        Kind::Cls => Pooling::Cls,
        Kind::Last => Pooling::Last,
    };
    let context = args.ctx.map_or(Context::Default, Context::Tokens);
    let builder = Model::builder(&args.model).embeddings(pooling);
    let model = builder.context(context).load()?;
    let mut embedder = model.embedder()?.truncate(args.truncate);
    match &args.query {
        Some(query) if !args.json => print_ranked(&mut embedder, query, &texts, args.rerank),
        query => {
            texts.splice(0..0, query.clone());
            print_json(embedder, &texts)
        }
    }
}

/// Prints the nearest texts first.
fn print_ranked(embedder: &mut Embedder, query: &str, texts: &[String], rerank: bool) -> anyhow::Result<()> {
    let scores = if rerank {
        embedder.rerank(query, texts)?
    } else {
        let query = embedder.embed(&[query])?.remove(0);
        let vectors = embedder.embed(texts)?;
        let cosine = |vector| cosine_similarity(&query, vector);
        vectors.iter().map(cosine).collect::<Result<_, _>>()?
    };
    let mut ranked: Vec<(f32, &String)> = scores.into_iter().zip(texts).collect();
    ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let mut out = BufWriter::new(stdout().lock());
    for (score, text) in ranked {
        writeln!(out, "{score:.4}  {text}")?;
    }
    Ok(out.flush()?)
}

fn print_json(mut embedder: Embedder, texts: &[String]) -> anyhow::Result<()> {
    let embeddings = embedder.embed(texts)?;
    let vectors: Vec<&[f32]> = embeddings.iter().map(AsRef::as_ref).collect();
    // Rust's debug format of number lists is valid JSON.
    println!("{vectors:?}");
    Ok(())
}
