//! Rules that begin with themselves: to expand them would never end.

use super::parse::{Alternative, Element};

/// `llama_grammar_detect_left_recursion`: the same grammars are refused.
pub(super) struct LeftRecursion<'a> {
    rules: &'a [Vec<Alternative>],
    done: Vec<bool>,
    in_progress: Vec<bool>,
    may_be_empty: Vec<bool>,
}

impl<'a> LeftRecursion<'a> {
    pub(super) fn look_for(rules: &'a [Vec<Alternative>]) -> Result<(), String> {
        let mut search = Self {
            rules,
            done: vec![false; rules.len()],
            in_progress: vec![false; rules.len()],
            may_be_empty: vec![false; rules.len()],
        };
        for rule in 0..rules.len() {
            if !search.done[rule] && search.is_left_recursive(rule) {
                return Err("a rule begins with itself (left recursion)".to_owned());
            }
        }
        Ok(())
    }

    fn is_left_recursive(&mut self, rule: usize) -> bool {
        if self.in_progress[rule] {
            return true;
        }
        if self.done[rule] {
            return false;
        }
        self.in_progress[rule] = true;
        let alternatives = &self.rules[rule];
        self.may_be_empty[rule] = alternatives.iter().any(Vec::is_empty);
        for alternative in alternatives {
            for element in alternative {
                let Element::Rule(next) = *element else { break };
                if self.is_left_recursive(next) {
                    return true;
                }
                if !self.may_be_empty[next] {
                    break;
                }
            }
        }
        self.in_progress[rule] = false;
        self.done[rule] = true;
        false
    }
}
