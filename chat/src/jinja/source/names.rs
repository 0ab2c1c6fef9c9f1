//! The names of our filters and functions in a rewritten template.

/// Filter for every composed value and every assigned variable.
pub(in crate::jinja) const KEPT: &str = "__kept";
/// Filter for the lazy results of jinja2's filters.
pub(in crate::jinja) const GENERATED: &str = "__generated";
/// Filter for values stored in a namespace.
pub(in crate::jinja) const DATA: &str = "__data";
/// Filter for operands of `~`.
pub(in crate::jinja) const TEXT: &str = "__text";
/// Function that adds texts when one of them is marked as HTML.
pub(in crate::jinja) const SUM: &str = "__sum";
/// Filter for Python's operator `%` behind a text.
pub(in crate::jinja) const PRINTF: &str = "__printf";
/// Filter for an attribute that may be a method.
pub(in crate::jinja) const ATTRIBUTE: &str = "__attribute";
/// Filter that refuses an assignment to an attribute of a namespace that begins with `_`.
pub(in crate::jinja) const PRIVATE: &str = "__private";
/// Filter for a mutable list.
pub(in crate::jinja) const LIST: &str = "__list";
/// Filter for the iterated value of a loop. A text becomes a list of its characters, because minijinja's loops do not
/// know the length of a text.
pub(in crate::jinja) const ITEMS: &str = "__items";
/// Value of a macro's parameter that got no argument; also the name of the test for it.
pub(in crate::jinja) const UNSET: &str = "__unset";
/// Function called at the start of every loop body and macro.
pub(in crate::jinja) const TICK: &str = "__tick";
