//! The names of our filters and functions, as they are in a rewritten template.

/// The filter for every value that is made of other values, and for every variable that is assigned.
pub(in crate::jinja) const KEPT: &str = "__kept";
/// The filter for the results of filters that are lazy in jinja2.
pub(in crate::jinja) const GENERATED: &str = "__generated";
/// The filter for values that are stored in a namespace.
pub(in crate::jinja) const DATA: &str = "__data";
/// The filter for the operands of `~`.
pub(in crate::jinja) const TEXT: &str = "__text";
/// The function for `+` in templates that mark texts as HTML.
pub(in crate::jinja) const SUM: &str = "__sum";
/// The filter for Python's operator `%` after a text.
pub(in crate::jinja) const PRINTF: &str = "__printf";
/// The filter for an attribute that may be a method.
pub(in crate::jinja) const ATTRIBUTE: &str = "__attribute";
/// The filter for assignments to a namespace's attributes. It refuses names that begin with `_`.
pub(in crate::jinja) const PRIVATE: &str = "__private";
/// The filter for a list that a template may change.
pub(in crate::jinja) const LIST: &str = "__list";
/// The filter for the value over which a loop iterates. A text becomes a list of its characters, because a minijinja
/// loop does not know how long a text is.
pub(in crate::jinja) const ITEMS: &str = "__items";
/// The value of a macro's parameter for which no argument was given. A test for this value has the same name.
pub(in crate::jinja) const UNSET: &str = "__unset";
/// The function that is called at the beginning of each iteration and each macro.
pub(in crate::jinja) const TICK: &str = "__tick";
