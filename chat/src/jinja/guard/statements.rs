//! Writes the statements of a tree as a template.

use std::fmt::Write as _;

use minijinja::machinery::Span;
use minijinja::machinery::ast::{Expr, ForLoop, IfCond, Macro, SetBlock, Stmt};

use super::super::fault::Fault;
use super::{ITEMS, KEPT, NO_LOADER, STORED, wrong};

/// Bytes of the template itself that are kept without being counted: an instruction each.
const UNCOUNTED: usize = 16;

/// Writes a tree as a template, for a syntax that trims nothing.
pub(super) struct Writer<'s> {
    /// What the tree was made of.
    pub(super) source: &'s str,
    pub(super) out: String,
    /// The line that is being written.
    line: u16,
}

impl<'s> Writer<'s> {
    /// A template that does what this tree does.
    pub(super) fn write(source: &'s str, template: &Stmt<'_>) -> Result<String, Box<Fault>> {
        let mut writer = Self {
            source,
            out: String::with_capacity(source.len() * 2),
            line: 1,
        };
        writer.statement(template, false)?;
        Ok(writer.out)
    }

    pub(super) fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Goes on in the line of the source, between two tokens.
    pub(super) fn at(&mut self, span: Span) {
        while self.line < span.start_line {
            self.out.push('\n');
            self.line += 1;
        }
    }

    fn tag(&mut self, words: &str) {
        self.put("{% ");
        self.put(words);
        self.put(" %}");
    }

    fn statements(&mut self, statements: &[Stmt<'_>], is_kept: bool) -> Result<(), Box<Fault>> {
        statements
            .iter()
            .try_for_each(|statement| self.statement(statement, is_kept))
    }

    /// `is_kept`: what it writes is kept as a value.
    fn statement(&mut self, statement: &Stmt<'_>, is_kept: bool) -> Result<(), Box<Fault>> {
        match statement {
            Stmt::Template(template) => return self.statements(&template.children, is_kept),
            Stmt::EmitExpr(emit) => {
                self.put("{{ ");
                self.expression(&emit.expr);
                self.put(" }}");
            }
            Stmt::EmitRaw(raw) => self.raw(raw.raw, is_kept),
            Stmt::ForLoop(of) => return self.for_loop(of, is_kept),
            Stmt::IfCond(of) => return self.conditional(of, is_kept),
            Stmt::WithBlock(with) => {
                self.put("{% with ");
                for (index, (target, value)) in with.assignments.iter().enumerate() {
                    self.put(if index > 0 { ", " } else { "" });
                    self.target(target);
                    self.put(" = ");
                    self.expression(value);
                }
                self.put(" %}");
                self.statements(&with.body, is_kept)?;
                self.tag("endwith");
            }
            Stmt::Set(set) => {
                self.put("{% set ");
                self.target(&set.target);
                self.put(" = ");
                match is_of_a_namespace(&set.target) {
                    true => self.call(STORED, &[&set.expr]),
                    false => self.expression(&set.expr),
                }
                self.put(" %}");
            }
            Stmt::SetBlock(of) => return self.set_block(of),
            Stmt::FilterBlock(block) => {
                self.put("{% filter ");
                self.filters(&block.filter);
                self.put(" %}");
                self.statements(&block.body, true)?;
                self.tag("endfilter");
            }
            Stmt::Block(of) => {
                let required = if of.required { " required" } else { "" };
                self.tag(&format!("block {}{required}", of.name));
                self.statements(&of.body, is_kept)?;
                self.tag("endblock");
            }
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                let _ = write!(self.out, "{{{{ {NO_LOADER}() }}}}");
            }
            Stmt::Macro(of) => {
                let _ = write!(self.out, "{{% macro {}(", of.name);
                self.parameters(of);
                self.put(") %}");
                self.statements(&of.body, true)?;
                self.tag("endmacro");
            }
            Stmt::CallBlock(block) => {
                self.put("{% call(");
                self.parameters(&block.macro_decl);
                self.put(") ");
                self.call_of(&block.call);
                self.put(" %}");
                self.statements(&block.macro_decl.body, true)?;
                self.tag("endcall");
            }
            Stmt::Continue(_) => self.tag("continue"),
            Stmt::Break(_) => self.tag("break"),
            // transformers does not add the extension.
            Stmt::Do(of) => return wrong(of.span(), "unknown tag 'do'".to_owned()),
            Stmt::AutoEscape(of) => {
                return wrong(of.span(), "autoescape is not supported".to_owned());
            }
        }
        Ok(())
    }

    /// Text of the template: where it could be taken for a tag, as a value.
    fn raw(&mut self, text: &str, is_kept: bool) {
        if is_kept && text.len() > UNCOUNTED {
            let _ = write!(self.out, "{{{{ {KEPT}(");
            self.literal(text);
            self.put(") }}");
        } else if text.contains('{') {
            self.put("{{ ");
            self.literal(text);
            self.put(" }}");
        } else {
            self.put(text);
            let lines = text.matches('\n').count();
            self.line = self
                .line
                .saturating_add(u16::try_from(lines).unwrap_or(u16::MAX));
        }
    }

    fn for_loop(&mut self, of: &ForLoop<'_>, is_kept: bool) -> Result<(), Box<Fault>> {
        self.put("{% for ");
        self.target(&of.target);
        self.put(" in ");
        self.call(ITEMS, &[&of.iter]);
        if let Some(condition) = &of.filter_expr {
            self.put(" if ");
            self.expression(condition);
        }
        self.put(if of.recursive { " recursive %}" } else { " %}" });
        self.statements(&of.body, is_kept)?;
        if !of.else_body.is_empty() {
            self.tag("else");
            self.statements(&of.else_body, is_kept)?;
        }
        self.tag("endfor");
        Ok(())
    }

    fn conditional(&mut self, of: &IfCond<'_>, is_kept: bool) -> Result<(), Box<Fault>> {
        let (mut of, mut word) = (of, "if");
        loop {
            let _ = write!(self.out, "{{% {word} ");
            self.expression(&of.expr);
            self.put(" %}");
            self.statements(&of.true_body, is_kept)?;
            match of.false_body.as_slice() {
                [] => break,
                [Stmt::IfCond(next)] => (of, word) = (next, "elif"),
                body => {
                    self.tag("else");
                    self.statements(body, is_kept)?;
                    break;
                }
            }
        }
        self.tag("endif");
        Ok(())
    }

    fn set_block(&mut self, of: &SetBlock<'_>) -> Result<(), Box<Fault>> {
        self.put("{% set ");
        self.target(&of.target);
        if let Some(filter) = &of.filter {
            self.put(" | ");
            self.filters(filter);
        }
        self.put(" %}");
        self.statements(&of.body, true)?;
        self.tag("endset");
        Ok(())
    }

    fn parameters(&mut self, of: &Macro<'_>) {
        let without_default = of.args.len().saturating_sub(of.defaults.len());
        for (index, name) in of.args.iter().enumerate() {
            self.put(if index > 0 { ", " } else { "" });
            self.target(name);
            let default = index
                .checked_sub(without_default)
                .and_then(|index| of.defaults.get(index));
            if let Some(default) = default {
                self.put("=");
                self.expression(default);
            }
        }
    }

    /// What is assigned to.
    fn target(&mut self, target: &Expr<'_>) {
        match target {
            Expr::List(list) => {
                self.put("(");
                for item in &list.items {
                    self.target(item);
                    self.put(", ");
                }
                self.put(")");
            }
            Expr::GetAttr(of) => {
                self.target(&of.expr);
                self.put(".");
                self.put(of.name);
            }
            Expr::Var(name) => self.put(name.id),
            // The parser makes no other ones.
            _ => {}
        }
    }
}

/// Whether an attribute of a namespace is assigned to.
fn is_of_a_namespace(target: &Expr<'_>) -> bool {
    match target {
        Expr::GetAttr(_) => true,
        Expr::List(list) => list.items.iter().any(is_of_a_namespace),
        _ => false,
    }
}
