//! A generation token by token, for whoever wants more of it than the text.

/// What a generation is made of, token by token, with its end: lent by
/// [`TokenStream::pieces`](super::TokenStream::pieces) and [`Answer::pieces`](super::Answer::pieces). The last piece
/// has its [`end`](super::Piece::end), unless the generation ends with an error.
///
/// An iterator; of an `AsyncTokenStream` or an `AsyncAnswer`, a `Stream`.
#[derive(Debug)]
pub struct Pieces<'a, G>(pub(super) &'a mut G);
