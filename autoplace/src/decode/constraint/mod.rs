//! Constraints on the text of a generation: a JSON schema, a regular expression, a grammar, or a list of choices.
//!
//! In: a [`Constraint`] and a model's vocabulary. Out: before each token, the set of tokens that may come next. A text
//! that ends by itself therefore meets its constraint. A text that a limit cuts short ends with
//! [`Error::Incomplete`](crate::generate::Error::Incomplete), so a partial text is never mistaken for a whole one.

mod call_schema;
mod calls;
mod compile;
mod gbnf;
mod kind;
mod lark;
mod limits;
mod matcher;
mod messages;
mod schema;
#[cfg(feature = "schemars")]
mod typed;
mod unenforced;

pub use kind::Constraint;
pub(crate) use matcher::Matcher;
pub use unenforced::Unenforced;

#[cfg(test)]
mod suite;
#[cfg(test)]
mod tests;
