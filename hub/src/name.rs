//! The name of a model: `hf:owner/name[:quant][@revision]`.

use std::fmt;
use std::str::FromStr;

/// The name of a model on a hub, `hf:owner/name[:quant][@revision]`.
///
/// ```
/// let name: autoplace_hub::Name = "hf:Qwen/Qwen3-8B-GGUF:q4_k_m".parse()?;
/// assert_eq!(name.repository(), "Qwen/Qwen3-8B-GGUF");
/// assert_eq!(name.quant(), Some("Q4_K_M"));
/// assert_eq!(name.revision(), "main");
/// # Ok::<_, autoplace_hub::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    repository: String,
    quant: Option<String>,
    revision: Option<String>,
}

/// A text that is not the name of a model on a hub.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is not the name of a model on a hub: {problem}; write hf:owner/name, hf:owner/name:Q4_K_M or hf:owner/name@main"
)]
pub struct NameError {
    name: String,
    problem: &'static str,
}

impl Name {
    /// Whether a text is a name and not a path. A name begins with `hf:`.
    pub fn is_hub_name(text: &str) -> bool {
        text.starts_with("hf:")
    }

    /// The repository, `owner/name`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The quantisation that is asked for, in capitals; `None` if the name contains none.
    pub fn quant(&self) -> Option<&str> {
        self.quant.as_deref()
    }

    /// The same repository and revision, without a quantisation.
    pub fn without_quant(&self) -> Self {
        Self { quant: None, ..self.clone() }
    }

    /// The branch, tag or commit. Default: `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

/// The text before a mark, and the text after it; `None` if the mark does not occur.
pub(crate) fn cut(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, behind)| (before, Some(behind)))
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = |problem| NameError { name: text.to_owned(), problem };
        let rest = text.strip_prefix("hf:").ok_or_else(|| wrong("it does not begin with hf:"))?;
        let (rest, revision) = cut(rest, '@');
        let (repository, quant) = cut(rest, ':');
        let (owner, name) = repository.split_once('/').ok_or_else(|| wrong("there is no owner/name"))?;
        // The rule of the hub for names (huggingface_hub, `validate_repo_id`). A name that follows this rule cannot
        // lead out of its folder.
        let is_word = |word: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !word.is_empty() && word.chars().all(allowed) && !word.starts_with('.')
        };
        if [owner, name].iter().any(|part| !is_word(part) || part.contains("--")) {
            return Err(wrong("an owner and a name have letters, digits, `-`, `_` and `.`"));
        }
        if quant.is_some_and(|quant| !is_word(quant) || quant.contains('.')) {
            return Err(wrong("a quantisation has letters, digits, `_` and `-`"));
        }
        if revision.is_some_and(|revision| !revision.split('/').all(is_word)) {
            return Err(wrong("a revision is a branch, a tag or a commit"));
        }
        Ok(Self {
            repository: repository.to_owned(),
            quant: quant.map(str::to_uppercase),
            revision: revision.map(str::to_owned),
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repository)?;
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_and_written_alike() {
        for text in ["hf:a/b", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "hf:a/b@v1.0", "hf:a/b:Q8_0@refs/pr/1"] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        let name: Name = "hf:a/b:ud-q4_k_xl".parse().unwrap();
        assert_eq!((name.quant(), name.revision()), (Some("UD-Q4_K_XL"), "main"));
    }

    #[test]
    fn a_text_that_is_not_a_name_is_refused_with_the_right_form() {
        for text in
            ["a/b", "hf:b", "hf:/b", "hf:a/", "hf:a/b/c", "hf:../b", "hf:a/b:", "hf:a/b:../x", "hf:a/b@", "hf:a/b@../x"]
        {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not the name of a model on a hub")), "{error}");
        }
    }
}
