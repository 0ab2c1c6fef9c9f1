//! Writes a query and a document in the form that a reranker expects.
//!
//! The form is the model's own `tokenizer.chat_template.rerank`, if it has one. Otherwise, the query and the document
//! are put between the special tokens that the model adds to texts. llama.cpp's server does the same (tools/server,
//! `format_prompt_rerank`).

use llama_sys::{Token, Vocab};

use super::Error;

/// The model's template. `{query}` and `{document}` stand for the two texts.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

#[derive(Debug)]
pub(super) struct Format<'a> {
    vocab: &'a Vocab,
    template: Option<String>,
}

/// The origin of a part of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Template,
    Query,
    Document,
}

/// Tokens of a part. The flag marks the document, which may be truncated.
type Tokens = (Vec<Token>, bool);

impl<'a> Format<'a> {
    pub(super) fn new(vocab: &'a Vocab) -> Self {
        Self { vocab, template: vocab.model().metadata(TEMPLATE) }
    }

    /// Combines the query and the document with this index. Control tokens that are written in the query or the
    /// document are plain text.
    pub(super) fn pair(&self, index: usize, query: &str, document: &str, limit: Limit) -> Result<Text, Error> {
        let parts = match &self.template {
            Some(template) => {
                let parts = parts(template, query, document);
                let tokens = |&(text, part): &(&str, Part)| {
                    let tokens = self.vocab.tokenize(text, false, part == Part::Template)?;
                    Ok((tokens, part == Part::Document))
                };
                let tokens: Vec<Tokens> = parts.iter().map(tokens).collect::<Result<_, Error>>()?;
                // Tokens may span the border between a text and its surroundings, so the whole pair is tokenized at
                // once, unless that would turn a part of the texts into control tokens.
                let whole: String = parts.iter().map(|(text, _)| *text).collect();
                let whole = self.vocab.tokenize(&whole, false, true)?;
                if self.controls(&whole) == self.controls(tokens.iter().flat_map(|(part, _)| part))
                    && whole.len() <= limit.tokens
                {
                    vec![(whole, false)]
                } else {
                    tokens
                }
            }
            None => self.around(query, document)?,
        };
        let count: usize = parts.iter().map(|(tokens, _)| tokens.len()).sum();
        match count {
            0 => Err(Error::Empty { index }),
            count if count <= limit.tokens => Ok(joined(parts, usize::MAX)),
            count => {
                let documents = parts.iter().filter(|(_, is_document)| *is_document);
                let cut: usize = documents.clone().map(|(tokens, _)| tokens.len()).sum();
                let room = limit.tokens.checked_sub(count - cut);
                match room.and_then(|room| room.checked_div(documents.count())) {
                    Some(each) if limit.truncate && each > 0 => Ok(joined(parts, each)),
                    _ => Err(Error::TooLong { index, tokens: count, limit: limit.tokens }),
                }
            }
        }
    }

    /// `[BOS]query[EOS][SEP]document[EOS]`, with those of these special tokens that the model adds.
    fn around(&self, query: &str, document: &str) -> Result<Vec<Tokens>, Error> {
        let added = self.vocab.added_tokens();
        let one = |token: Option<Token>| (Vec::from_iter(token), false);
        Ok(vec![
            one(added.bos),
            (self.vocab.tokenize(query, false, false)?, false),
            one(added.eos),
            one(added.sep),
            (self.vocab.tokenize(document, false, false)?, true),
            one(added.eos),
        ])
    }

    fn controls<'t>(&self, tokens: impl IntoIterator<Item = &'t Token>) -> Vec<Token> {
        tokens.into_iter().copied().filter(|token| self.vocab.is_control(*token)).collect()
    }
}

/// Joins the parts into one text, with each document cut to `most` tokens.
fn joined(parts: Vec<Tokens>, most: usize) -> Text {
    let mut text = Text { tokens: Vec::new(), truncated: false };
    for (mut tokens, is_document) in parts {
        if is_document && tokens.len() > most {
            tokens.truncate(most);
            text.truncated = true;
        }
        text.tokens.append(&mut tokens);
    }
    text
}

/// Splits a template in a single pass, so that a `{document}` in a query is plain text.
fn parts<'t>(template: &'t str, query: &'t str, document: &'t str) -> Vec<(&'t str, Part)> {
    let places = [("{query}", query, Part::Query), ("{document}", document, Part::Document)];
    let mut parts = Vec::new();
    let mut rest = template;
    loop {
        let found = places.iter().filter_map(|place| Some((rest.find(place.0)?, place)));
        let Some((at, (name, text, part))) = found.min_by_key(|(at, _)| *at) else {
            break;
        };
        parts.extend([(&rest[..at], Part::Template), (text, *part)]);
        rest = &rest[at + name.len()..];
    }
    parts.push((rest, Part::Template));
    parts.retain(|(text, _)| !text.is_empty());
    parts
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) tokens: Vec<Token>,
    pub(super) truncated: bool,
}

/// The maximum number of tokens of a text, and whether longer texts are truncated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) tokens: usize,
    pub(super) truncate: bool,
}

impl Text {
    /// Tokenizes the text with this index, including the tokens that the model adds. Control tokens that are written in
    /// the text are plain text.
    pub(super) fn new(vocab: &Vocab, index: usize, text: &str, limit: Limit) -> Result<Self, Error> {
        let mut tokens = vocab.tokenize(text, true, false)?;
        if tokens.is_empty() {
            return Err(Error::Empty { index });
        }
        let truncated = tokens.len() > limit.tokens;
        if truncated {
            if !limit.truncate {
                return Err(Error::TooLong { index, tokens: tokens.len(), limit: limit.tokens });
            }
            // A control token at the end was added by the model, and stays.
            let end = tokens.pop().filter(|last| vocab.is_control(*last));
            tokens.truncate(limit.tokens - usize::from(end.is_some()));
            tokens.extend(end);
        }
        Ok(Self { tokens, truncated })
    }
}

#[cfg(test)]
mod tests {
    use super::Part::{Document, Query, Template};
    use super::parts;

    #[test]
    fn a_template_is_split_at_its_places() {
        let parts = |template| parts(template, "q {document}", "d {query}");
        let (query, document) = (("q {document}", Query), ("d {query}", Document));
        assert_eq!(parts(""), []);
        assert_eq!(parts("a"), [("a", Template)]);
        assert_eq!(parts("{query}{document}"), [query, document]);
        assert_eq!(
            parts("Q: {query}\nD: {document} {other}"),
            [("Q: ", Template), query, ("\nD: ", Template), document, (" {other}", Template)]
        );
        assert_eq!(parts("{document}{query"), [document, ("{query", Template)]);
    }
}
