//! A query and a document, as a reranker wants to read them.
//!
//! As in llama.cpp's server (tools/server, `format_prompt_rerank`): by the model's own `tokenizer.chat_template.rerank`
//! if it has one, else the query and the document between the tokens that the model puts around texts.

use llama_sys::{Token, Vocab};

use super::Error;

/// The model's template: of it, `{query}` and `{document}` are taken for the two texts, and everything else for itself.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

#[derive(Debug)]
pub(super) struct Format<'a> {
    vocab: &'a Vocab,
    template: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    Literal(&'a str),
    Query,
    Document,
}

/// Tokens of a part, and whether they are the document's, which may be cut.
type Tokens = (Vec<Token>, bool);

impl<'a> Format<'a> {
    pub(super) fn of(vocab: &'a Vocab) -> Self {
        Self { vocab, template: vocab.model().metadata(TEMPLATE) }
    }

    /// The query and the document of this number. Control tokens written in either are text.
    ///
    /// # Errors
    ///
    /// As [`Text::of`].
    pub(super) fn pair(
        &self,
        index: usize,
        query: &str,
        document: &str,
        limit: Limit,
    ) -> Result<Text, Error> {
        let parts = match &self.template {
            Some(template) => {
                let parts = parts(template);
                let tokens = self.parts(&parts, query, document)?;
                // Tokens may join a text with what is around it, so the whole is read at once; unless that makes
                // control tokens of the texts.
                let whole = self.whole(&parts, query, document)?;
                if self.controls(&whole) == self.controls(tokens.iter().flat_map(|(it, _)| it))
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
                    _ => Err(Error::too_long(index, count, limit)),
                }
            }
        }
    }

    /// `[BOS]query[EOS][SEP]document[EOS]`, of these tokens those that the model adds.
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

    fn parts(&self, parts: &[Part<'_>], query: &str, document: &str) -> Result<Vec<Tokens>, Error> {
        let vocab = self.vocab;
        let tokens = |part: &Part<'_>| {
            Ok(match part {
                Part::Literal(text) => (vocab.tokenize(text, false, true)?, false),
                Part::Query => (vocab.tokenize(query, false, false)?, false),
                Part::Document => (vocab.tokenize(document, false, false)?, true),
            })
        };
        parts.iter().map(tokens).collect()
    }

    fn whole(&self, parts: &[Part<'_>], query: &str, document: &str) -> Result<Vec<Token>, Error> {
        let text: String = parts
            .iter()
            .map(|part| match part {
                Part::Literal(text) => text,
                Part::Query => query,
                Part::Document => document,
            })
            .collect();
        Ok(self.vocab.tokenize(&text, false, true)?)
    }

    fn controls<'t>(&self, tokens: impl IntoIterator<Item = &'t Token>) -> Vec<Token> {
        let is_control = |token: &&Token| self.vocab.is_control(**token);
        tokens.into_iter().filter(is_control).copied().collect()
    }
}

/// One text of these parts, its documents cut to so many tokens.
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

/// The parts of a template, in one pass: what a query says of a document is its own.
fn parts(template: &str) -> Vec<Part<'_>> {
    const PLACES: [(&str, Part<'_>); 2] =
        [("{query}", Part::Query), ("{document}", Part::Document)];
    let mut parts = Vec::new();
    let mut rest = template;
    loop {
        let next = PLACES
            .iter()
            .filter_map(|&(name, part)| Some((rest.find(name)?, name, part)))
            .min_by_key(|&(at, ..)| at);
        let (literal, after) = match next {
            Some((at, name, part)) => (&rest[..at], Some((&rest[at + name.len()..], part))),
            None => (rest, None),
        };
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        let Some((left, part)) = after else {
            return parts;
        };
        parts.push(part);
        rest = left;
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) tokens: Vec<Token>,
    pub(super) truncated: bool,
}

/// The most tokens of a text, and whether longer ones are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) tokens: usize,
    pub(super) truncate: bool,
}

impl Text {
    /// The text of this number, with the tokens that the model adds. Control tokens written in it are text.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`], [`Error::Empty`]; [`Error::Native`] for a model without a vocabulary.
    pub(super) fn of(vocab: &Vocab, index: usize, text: &str, limit: Limit) -> Result<Self, Error> {
        let mut tokens = vocab.tokenize(text, true, false)?;
        if tokens.is_empty() {
            return Err(Error::Empty { index });
        }
        let truncated = tokens.len() > limit.tokens;
        if truncated {
            let count = tokens.len();
            if !limit.truncate {
                return Err(Error::too_long(index, count, limit));
            }
            // Only the model has put a control token there: what it adds at the end stays.
            let end = tokens.pop().filter(|last| vocab.is_control(*last));
            tokens.truncate(limit.tokens - usize::from(end.is_some()));
            tokens.extend(end);
        }
        Ok(Self { tokens, truncated })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }
}

impl Error {
    pub(super) fn too_long(index: usize, tokens: usize, limit: Limit) -> Self {
        Self::TooLong { index, tokens, limit: limit.tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::Part::{Document, Literal, Query};
    use super::{joined, parts};

    #[test]
    fn a_template_is_split_at_its_places() {
        assert_eq!(parts(""), []);
        assert_eq!(parts("a"), [Literal("a")]);
        assert_eq!(parts("{query}{document}"), [Query, Document]);
        assert_eq!(
            parts("Q: {query}\nD: {document} {other}"),
            [Literal("Q: "), Query, Literal("\nD: "), Document, Literal(" {other}")]
        );
        assert_eq!(parts("{document}{query"), [Document, Literal("{query")]);
    }

    #[test]
    fn only_documents_are_cut() {
        let parts = vec![(vec![1, 2, 3], false), (vec![4, 5, 6], true), (vec![7], false)];
        let text = joined(parts.clone(), 2);
        assert_eq!((&text.tokens[..], text.truncated), (&[1, 2, 3, 4, 5, 7][..], true));
        let text = joined(parts, 3);
        assert_eq!((text.len(), text.truncated), (7, false));
    }
}
