//! Writes expressions: each so that nothing beside it can be taken for a part of it.

use std::fmt::Write as _;

use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CompareOpKind, Expr, Filter, UnaryOpKind,
};
use minijinja::value::ValueKind;

use super::statements::Writer;
use super::{
    ADD, CONCAT, CYCLE, GENERATED, GLANCE, IN, ITEMS, MADE, MODULO, MULTIPLY, ORDERED, READ, SLICE,
};

/// Filters that are both [`SHALLOW`] and [`COUNTED`].
const SHALLOW_AND_COUNTED: &[&str] = &[
    "attr",
    "count",
    "d",
    "default",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "join",
    "last",
    "length",
    "list",
    "replace",
    "round",
    "string",
    "tojson",
];

/// Filters that take no longer than it takes to read a text, or to go through a list without looking into its items.
const SHALLOW: &[&str] = &[
    "abs",
    "bool",
    "capitalize",
    "center",
    "lower",
    "rejectattr",
    "reverse",
    "safe",
    "selectattr",
    "striptags",
    "title",
    "trim",
    "truncate",
    "upper",
    "wordcount",
];

/// Filters that give back what was there, or count what they make themselves.
const COUNTED: &[&str] = &["max", "min"];

/// Filters that fail in Python where there is nothing to go through.
const ITERATING: &[&str] = &[
    "batch", "groupby", "max", "min", "slice", "sort", "sum", "unique",
];

/// Filters whose lists are computed one at a time in Python.
const GENERATORS: &[&str] = &[
    "batch",
    "items",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "unique",
];

impl Writer<'_> {
    /// A call of ours.
    pub(super) fn call(&mut self, name: &str, arguments: &[&Expr<'_>]) {
        self.put(name);
        self.put("(");
        for (index, argument) in arguments.iter().enumerate() {
            self.put(if index > 0 { ", " } else { "" });
            self.expression(argument);
        }
        self.put(")");
    }

    /// An expression that nothing beside it can be taken for a part of.
    pub(super) fn expression(&mut self, expression: &Expr<'_>) {
        self.at(expression.span());
        match expression {
            Expr::Var(name) => self.put(name.id),
            Expr::Const(of) => self.constant(&of.value, of.span()),
            Expr::UnaryOp(of) => {
                self.put(match of.op {
                    UnaryOpKind::Not => "(not ",
                    UnaryOpKind::Neg => "(-",
                });
                self.expression(&of.expr);
                self.put(")");
            }
            Expr::BinOp(of) => match of.op {
                BinOpKind::Concat => self.chain(CONCAT, BinOpKind::Concat, expression),
                BinOpKind::Add => self.chain(ADD, BinOpKind::Add, expression),
                BinOpKind::Mul => self.call(MULTIPLY, &[&of.left, &of.right]),
                BinOpKind::Rem => self.call(MODULO, &[&of.left, &of.right]),
                BinOpKind::In => self.call(IN, &[&of.left, &of.right]),
                BinOpKind::Eq => self.equality(&of.left, "==", &of.right),
                BinOpKind::Ne => self.equality(&of.left, "!=", &of.right),
                BinOpKind::Lt => self.ordered(&of.left, "<", &of.right),
                BinOpKind::Lte => self.ordered(&of.left, "<=", &of.right),
                BinOpKind::Gt => self.ordered(&of.left, ">", &of.right),
                BinOpKind::Gte => self.ordered(&of.left, ">=", &of.right),
                BinOpKind::ScAnd => self.infix(" and ", BinOpKind::ScAnd, expression),
                BinOpKind::ScOr => self.infix(" or ", BinOpKind::ScOr, expression),
                BinOpKind::Sub => self.infix(" - ", BinOpKind::Sub, expression),
                BinOpKind::Div => self.infix(" / ", BinOpKind::Div, expression),
                BinOpKind::FloorDiv => self.infix(" // ", BinOpKind::FloorDiv, expression),
                BinOpKind::Pow => self.infix(" ** ", BinOpKind::Pow, expression),
            },
            Expr::Compare(of) => {
                self.put("(");
                self.call(READ, &[&of.expr]);
                for next in &of.ops {
                    self.put(match next.op {
                        CompareOpKind::Eq => " == ",
                        CompareOpKind::Ne => " != ",
                        CompareOpKind::Lt => " < ",
                        CompareOpKind::Lte => " <= ",
                        CompareOpKind::Gt => " > ",
                        CompareOpKind::Gte => " >= ",
                        CompareOpKind::In => " in ",
                        CompareOpKind::NotIn => " not in ",
                    });
                    self.call(READ, &[&next.expr]);
                }
                self.put(")");
            }
            Expr::IfExpr(_) => {
                self.put("(");
                let mut next = Some(expression);
                while let Some(Expr::IfExpr(of)) = next {
                    self.expression(&of.true_expr);
                    self.put(" if ");
                    self.expression(&of.test_expr);
                    next = of.false_expr.as_ref();
                    self.put(if next.is_some() { " else " } else { "" });
                }
                if let Some(last) = next {
                    self.expression(last);
                }
                self.put(")");
            }
            Expr::Filter(_) => {
                self.put("(");
                self.filters(expression);
                self.put(")");
            }
            Expr::Test(of) => {
                self.put("(");
                self.expression(&of.expr);
                self.put(" is ");
                self.put(of.name);
                if !of.args.is_empty() {
                    self.arguments(&of.args, None);
                }
                self.put(")");
            }
            Expr::GetAttr(of) => {
                self.expression(&of.expr);
                self.put(".");
                self.put(of.name);
            }
            Expr::GetItem(of) => {
                // By its name, something in a dict is found at once.
                match &of.subscript_expr {
                    Expr::Const(name) if name.value.as_str().is_some() => self.expression(&of.expr),
                    _ => self.call(GLANCE, &[&of.expr]),
                }
                self.put("[");
                self.key(&of.subscript_expr);
                self.put("]");
            }
            Expr::Slice(of) => {
                self.put(SLICE);
                self.put("(");
                self.expression(&of.expr);
                for bound in [&of.start, &of.stop, &of.step] {
                    self.put(", ");
                    match bound {
                        Some(bound) => self.expression(bound),
                        None => self.put("none"),
                    }
                }
                self.put(")");
            }
            Expr::Call(of) => self.call_of(of),
            Expr::List(of) => {
                let _ = write!(self.out, "{MADE}([");
                self.items(&of.items);
                self.put("])");
            }
            Expr::Tuple(of) => {
                let _ = write!(self.out, "{MADE}((");
                self.items(&of.items);
                self.put("))");
            }
            Expr::Map(of) => {
                let _ = write!(self.out, "{MADE}({{");
                for (key, value) in of.keys.iter().zip(&of.values) {
                    self.key(key);
                    self.put(": ");
                    self.expression(value);
                    self.put(", ");
                }
                self.put("})");
            }
        }
    }

    fn items(&mut self, items: &[Expr<'_>]) {
        for item in items {
            self.expression(item);
            self.put(", ");
        }
    }

    fn constant(&mut self, value: &minijinja::Value, span: Span) {
        if let Some(text) = value.as_str() {
            return self.literal(text);
        }
        match value.kind() {
            ValueKind::None => self.put("none"),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            _ => {
                let written = self
                    .source
                    .get(span.start_offset as usize..span.end_offset as usize);
                self.put("(");
                self.put(written.unwrap_or("none"));
                self.put(")");
            }
        }
    }

    /// What is looked for in a dict, of which all is read.
    pub(super) fn key(&mut self, key: &Expr<'_>) {
        match key {
            Expr::Const(_) => self.expression(key),
            _ => self.call(READ, &[key]),
        }
    }

    fn equality(&mut self, left: &Expr<'_>, operator: &str, right: &Expr<'_>) {
        self.put("(");
        self.call(READ, &[left]);
        let _ = write!(self.out, " {operator} ");
        self.call(READ, &[right]);
        self.put(")");
    }

    fn ordered(&mut self, left: &Expr<'_>, operator: &str, right: &Expr<'_>) {
        let _ = write!(self.out, "{ORDERED}('{operator}', ");
        self.expression(left);
        self.put(", ");
        self.expression(right);
        self.put(")");
    }

    /// `a ~ b ~ c` as one call, however many they are.
    fn chain(&mut self, name: &str, op: BinOpKind, expression: &Expr<'_>) {
        self.put(name);
        self.put("(");
        self.operands(", ", op, expression);
        self.put(")");
    }

    fn infix(&mut self, operator: &str, op: BinOpKind, expression: &Expr<'_>) {
        self.put("(");
        self.operands(operator, op, expression);
        self.put(")");
    }

    /// The operands of one operator that is used several times, from the left.
    fn operands(&mut self, between: &str, op: BinOpKind, expression: &Expr<'_>) {
        let mut right = Vec::new();
        let mut left = expression;
        while let Expr::BinOp(of) = left {
            if std::mem::discriminant(&of.op) != std::mem::discriminant(&op) {
                break;
            }
            right.push(&of.right);
            left = &of.left;
        }
        self.expression(left);
        for operand in right.into_iter().rev() {
            self.put(between);
            self.expression(operand);
        }
    }

    /// Filters one after the other, with what goes into the first where there is something.
    pub(super) fn filters(&mut self, expression: &Expr<'_>) {
        let mut filters: Vec<&Filter<'_>> = Vec::new();
        let mut input = Some(expression);
        while let Some(Expr::Filter(of)) = input {
            filters.push(of);
            input = of.expr.as_ref();
        }
        if let Some(input) = input {
            self.expression(input);
            self.put("|");
        }
        for (index, of) in filters.iter().rev().enumerate() {
            self.put(if index > 0 { "|" } else { "" });
            if ITERATING.contains(&of.name) {
                let _ = write!(self.out, "{ITEMS}|");
            }
            let is_both = SHALLOW_AND_COUNTED.contains(&of.name);
            let read = if is_both || SHALLOW.contains(&of.name) {
                GLANCE
            } else {
                READ
            };
            let _ = write!(self.out, "{read}|{}", of.name);
            if !of.args.is_empty() {
                self.arguments(&of.args, None);
            }
            if GENERATORS.contains(&of.name) {
                let _ = write!(self.out, "|{GENERATED}");
            } else if !(is_both || COUNTED.contains(&of.name)) {
                let _ = write!(self.out, "|{MADE}");
            }
        }
    }

    pub(super) fn call_of(&mut self, of: &Call<'_>) {
        match &of.expr {
            Expr::GetAttr(method) if method.name == "cycle" => {
                self.put(CYCLE);
                self.arguments(&of.args, Some(&method.expr));
            }
            Expr::GetAttr(method) if method.name == "changed" => {
                self.expression(&of.expr);
                self.put("(");
                for argument in &of.args {
                    let _ = write!(self.out, "{READ}(");
                    self.argument(argument);
                    self.put("), ");
                }
                self.put(")");
            }
            Expr::Var(name) if name.id == "loop" => {
                self.put("loop(");
                for argument in &of.args {
                    let _ = write!(self.out, "{ITEMS}(");
                    self.argument(argument);
                    self.put("), ");
                }
                self.put(")");
            }
            _ => {
                self.expression(&of.expr);
                self.arguments(&of.args, None);
            }
        }
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>], first: Option<&Expr<'_>>) {
        self.put("(");
        if let Some(first) = first {
            self.expression(first);
            self.put(if arguments.is_empty() { "" } else { ", " });
        }
        for (index, argument) in arguments.iter().enumerate() {
            self.put(if index > 0 { ", " } else { "" });
            self.argument(argument);
        }
        self.put(")");
    }

    fn argument(&mut self, argument: &CallArg<'_>) {
        match argument {
            CallArg::Pos(value) => self.expression(value),
            CallArg::Kwarg(name, value) => {
                self.put(name);
                self.put("=");
                self.expression(value);
            }
            CallArg::PosSplat(value) => {
                self.put("*");
                self.call(ITEMS, &[value]);
            }
            CallArg::KwargSplat(value) => {
                self.put("**");
                self.call(GLANCE, &[value]);
            }
        }
    }

    pub(super) fn literal(&mut self, text: &str) {
        self.out.push('\'');
        for c in text.chars() {
            match c {
                '\'' => self.put("\\'"),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                c => self.out.push(c),
            }
        }
        self.out.push('\'');
    }
}
