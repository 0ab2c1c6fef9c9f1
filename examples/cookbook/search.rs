//! A semantic search: embeds documents once, embeds a question, and finds the nearest documents.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;
use autoplace::embed::cosine_similarity;
use autoplace::memory::Pooling;

pub fn run(path: &Path) -> Result<()> {
    // Use `Pooling::Model` for an embedding model: its header names the pooling.
    let model = Model::builder(path).embeddings(Pooling::Mean).n_ctx(256).load()?;
    let mut embedder = model.embedder()?;
    let documents = ["The sea is his.", "He made the dry land.", "Bread and wine."];
    let vectors = embedder.embed(&documents)?;
    let asked = &embedder.embed(&["Who made the earth?"])?[0];
    let mut found = Vec::new();
    for (document, vector) in documents.iter().zip(&vectors) {
        found.push((cosine_similarity(asked, vector)?, document));
    }
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (similarity, document) in found {
        println!("{similarity:.3}  {document}");
    }
    Ok(())
}
