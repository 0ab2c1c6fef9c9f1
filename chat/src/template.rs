//! Chat templates of models.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use autoplace_planner::gguf::{Header, Value as Field};

use super::control::ControlTokens;
use super::conversation::Conversation;
use super::error::Error;
use super::jinja::{Limits, Template};
use super::message::{Message, Role, Tool};
use super::rendered::Rendered;
use super::reply::{ReplyFormat, ToolCallFormat};
use super::special::{self, SpecialTokens};
use super::{continuing, family, generic, history, marks};

const KEY: &str = "tokenizer.chat_template";

/// The variant that transformers uses if there are tools.
const TOOL_USE: &str = "tool_use";

/// The template with which a model was trained. It turns messages into a prompt.
///
/// Its output is the same as that of Hugging Face's transformers, to the character. A template is code that is a part
/// of a model, and the model may come from anybody. It sees nothing but the conversation, and [`Limits`] limit its
/// resources.
///
/// ```
/// use autoplace_chat::{ChatTemplate, Conversation, Message};
///
/// let template = ChatTemplate::family("chatml")?;
/// let prompt = template.render(&Conversation::new(&[Message::user("Hello!")]))?;
/// assert_eq!(
///     prompt.to_string(),
///     "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
/// );
/// # Ok::<(), autoplace_chat::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// The template's variants by name. One of the names is `default`.
    variants: Arc<Vec<Variant>>,
    /// The name of the variant that was chosen.
    chosen: Option<String>,
    special: SpecialTokens,
    control: ControlTokens,
    limits: Limits,
    /// Whether tools are described in a message if the template shows none.
    describes_tools: bool,
}

#[derive(Debug)]
struct Variant {
    name: String,
    source: String,
    template: Template,
    // Facts about the template. Each is found out when it is needed first.
    wants_parts: OnceLock<bool>,
    shows_tools: OnceLock<bool>,
    takes_system: OnceLock<bool>,
}

const DEFAULT: &str = "default";

/// A text that occurs in no template. A trial message or a trial tool contains it, so that it can be found in the
/// prompt.
const NEEDLE: &str = "Ahoy_7151";

impl ChatTemplate {
    /// Reads the template that is in a model's header, with its variants and special tokens. The control tokens are
    /// those of the types `CONTROL` and `UNKNOWN` (`tokenizer.ggml.token_type`), and those that have a key in the
    /// header.
    ///
    /// # Errors
    ///
    /// [`Error::NoTemplate`] if the header contains no template; no family is guessed. [`Error::Syntax`] or
    /// [`Error::Limit`] for an invalid template. [`Error::Header`] for a header that cannot be read.
    #[doc(alias = "tokenizer.chat_template")]
    #[doc(alias = "llama_model_chat_template")]
    pub fn from_header(header: &Header) -> Result<Self, Error> {
        let mut sources = Vec::new();
        for (key, value) in header.metadata() {
            let name = match key.split_at_checked(KEY.len()) {
                Some((KEY, "")) => DEFAULT,
                Some((KEY, suffix)) if suffix.starts_with('.') => &suffix[1..],
                _ => continue,
            };
            if matches!(value, Field::Str(_) | Field::Bytes(_)) {
                let source = header.str(key)?.unwrap_or_default();
                sources.push((name, source));
            }
        }
        if sources.is_empty() {
            let file = header.path().display().to_string();
            return Err(Error::NoTemplate { file });
        }
        Self::for_header(sources, header)
    }

    /// Makes a template from this source, which replaces the model's own. The special tokens and control tokens come
    /// from the model's header.
    ///
    /// # Errors
    ///
    /// The errors of [`from_header`](Self::from_header), except [`Error::NoTemplate`].
    pub fn from_source(source: &str, header: &Header) -> Result<Self, Error> {
        Self::for_header(vec![(DEFAULT, source)], header)
    }

    fn for_header(sources: Vec<(&str, &str)>, header: &Header) -> Result<Self, Error> {
        let (special, control) = special::of_header(header)?;
        Ok(Self { control, ..Self::from_sources(sources, special)? })
    }

    /// A template with this source. It gets these special tokens, such as `bos_token` and `eos_token`. They are also
    /// its control tokens, unless [`with_control_tokens`](Self::with_control_tokens) sets others.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] or [`Error::Limit`] for an invalid template.
    pub fn new(source: &str, special_tokens: SpecialTokens) -> Result<Self, Error> {
        Self::from_sources(vec![(DEFAULT, source)], special_tokens)
    }

    /// The template of a model family, for a model that ships none: `alpaca`, `chatml` (Qwen, Hermes, SmolLM and many
    /// others), `command-r`, `deepseek`, `gemma`, `llama-2`, `llama-3`, `mistral`, `phi-3`, `vicuna` or `zephyr`
    /// ([`FAMILIES`](super::FAMILIES)). The model's publisher says which family it is. With a wrong family, answers
    /// become worse without any error.
    ///
    /// ```
    /// let template = autoplace_chat::ChatTemplate::family("chatml")?;
    /// # Ok::<(), autoplace_chat::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::UnknownFamily`].
    pub fn family(name: &str) -> Result<Self, Error> {
        let (source, special, control) = family::get(name)?;
        Ok(Self::new(source, special)?.with_control_tokens(control))
    }

    fn from_sources(sources: Vec<(&str, &str)>, special: SpecialTokens) -> Result<Self, Error> {
        let limits = Limits::default();
        let mut variants = Vec::new();
        for (name, source) in sources {
            let template = Template::parse(source, &limits)?;
            let (wants_parts, shows_tools, takes_system) = <_>::default();
            let (name, source) = (name.to_owned(), source.to_owned());
            variants.push(Variant { name, source, template, wants_parts, shows_tools, takes_system });
        }
        Ok(Self {
            variants: Arc::new(variants),
            chosen: None,
            control: special.values().cloned().collect(),
            special,
            limits,
            describes_tools: true,
        })
    }

    /// The names of the variants: `default`, and others that the model has, such as `tool_use` or `rag`.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        self.variants.iter().map(|variant| variant.name.as_str())
    }

    /// Chooses the variant for every rendering. By default, this is `tool_use` if it exists and there are tools.
    /// Otherwise it is `default`, as in transformers.
    ///
    /// # Errors
    ///
    /// [`Error::NoVariant`].
    pub fn variant(mut self, name: &str) -> Result<Self, Error> {
        self.named(name)?;
        self.chosen = Some(name.to_owned());
        Ok(self)
    }

    fn named(&self, name: &str) -> Result<&Variant, Error> {
        let found = self.variants.iter().find(|variant| variant.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.variants().collect();
            Error::NoVariant { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Replaces the control tokens, for example by those of a vocabulary.
    pub fn with_control_tokens<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.control = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the limits for rendering. The limit for the source has no effect any more, because the source is already
    /// checked.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The source with which conversations with or without tools are rendered; `None` if the model has only other
    /// variants.
    pub fn source_for(&self, with_tools: bool) -> Option<&str> {
        let variant = self.pick(with_tools).ok()?;
        Some(variant.source.as_str())
    }

    fn pick(&self, with_tools: bool) -> Result<&Variant, Error> {
        match &self.chosen {
            Some(name) => self.named(name),
            None if with_tools => self.named(TOOL_USE).or_else(|_| self.named(DEFAULT)),
            None => self.named(DEFAULT),
        }
    }

    /// Whether the template itself shows tools to the model. The built-in templates of [`FAMILIES`](super::FAMILIES) do
    /// not.
    pub fn supports_tools(&self) -> bool {
        self.pick(true).is_ok_and(|variant| self.shows_tools(variant))
    }

    /// Sets whether the system message describes tools if the template [shows none](Self::supports_tools). If it does,
    /// calls are in Hermes' format. Default: true. If this is off and the template shows no tools, a conversation with
    /// tools leads to [`Error::ToolsNotShown`].
    pub fn describe_tools(mut self, describe: bool) -> Self {
        self.describes_tools = describe;
        self
    }

    /// Whether the model sees the tools of a conversation, because the template shows them or the system message
    /// [describes](Self::describe_tools) them. If the model does not see them, a conversation with tools leads to
    /// [`Error::ToolsNotShown`].
    pub fn presents_tools(&self) -> bool {
        self.describes_tools || self.supports_tools()
    }

    /// The format of answers to a conversation with or without tools. It is [`ReplyFormat::of_template`]. If tools are
    /// [described](Self::describe_tools), calls are in Hermes' format.
    pub fn reply_format(&self, with_tools: bool) -> ReplyFormat {
        let format = self.source_for(with_tools).map_or_else(ReplyFormat::plain, ReplyFormat::of_template);
        match with_tools && self.describes_tools && !self.supports_tools() {
            true => format.with_tool_calls(ToolCallFormat::Hermes),
            false => format,
        }
    }

    /// Whether the name of a tool appears when a short conversation is rendered. If the template refuses every trial,
    /// its source decides: it must contain the word `tools`.
    fn shows_tools(&self, variant: &Variant) -> bool {
        *variant.shows_tools.get_or_init(|| {
            let parameters = json!({"type": "object", "properties": {"x": {"type": "string", "description": "x"}}});
            let tool = [Tool::new(NEEDLE, "x", parameters)];
            let messages = [Message::system("Hello!"), Message::user("Hello!")];
            let shown = [&messages[1..], &messages]
                .map(|messages| self.shows_needle(variant, &Conversation::new(messages).tools(&tool)));
            shown.contains(&Some(true)) || (shown == [None; 2] && variant.source.contains("tools"))
        })
    }

    /// Whether the template shows contents that are lists of parts, but not contents that are texts. Some templates for
    /// images only iterate over parts. llama.cpp makes the same test.
    fn wants_parts(&self, variant: &Variant) -> bool {
        let shows = |content: Value| {
            let message = json!({"role": "user", "content": content});
            let conversation = Conversation::from_json(vec![message]).add_generation_prompt(false);
            self.shows_needle(variant, &conversation) == Some(true)
        };
        let look = || !shows(NEEDLE.into()) && shows(json!([{"type": "text", "text": NEEDLE}]));
        *variant.wants_parts.get_or_init(look)
    }

    /// Whether the template shows a system message. If the template does not even show a user message, the answer is
    /// true.
    fn takes_system(&self, variant: &Variant) -> bool {
        let shows = |messages: &[Message]| self.shows_needle(variant, &Conversation::new(messages)) == Some(true);
        let look = || shows(&[Message::system(NEEDLE), Message::user("Hello!")]) || !shows(&[Message::user(NEEDLE)]);
        *variant.takes_system.get_or_init(look)
    }

    /// Whether the template shows messages with all these roles, followed by a user message.
    fn takes_all(&self, variant: &Variant, roles: &[Role]) -> bool {
        let shown = |last: usize| {
            let content = |index| if index == last { NEEDLE } else { "Hello!" };
            let messages = (0..).zip(roles).map(|(index, role)| Message::new(role.clone(), content(index)));
            let messages: Vec<Message> = messages.chain([Message::user("Hello!")]).collect();
            self.shows_needle(variant, &Conversation::new(&messages)) == Some(true)
        };
        (0..roles.len()).all(shown)
    }

    /// Whether the needle appears when a conversation is rendered; `None` if rendering fails.
    fn shows_needle(&self, variant: &Variant, conversation: &Conversation) -> Option<bool> {
        // With this number of steps, any template can show one message.
        let limits = Limits { steps: self.limits.steps.min(100_000), ..self.limits };
        let variables = variables(&self.special, &self.in_parts(variant, conversation)).ok()?;
        let text = variant.template.render(&variables, None, limits).ok()?;
        Some(text.contains(NEEDLE))
    }

    /// If the template needs it, turns typed messages into messages with parts.
    fn in_parts<'a>(&self, variant: &Variant, conversation: &'a Conversation) -> Cow<'a, Conversation> {
        match conversation.typed && self.wants_parts(variant) {
            true => Cow::Owned(conversation.in_parts()),
            false => Cow::Borrowed(conversation),
        }
    }

    /// Renders a conversation. If a user's text looks like control tokens, the template does not see that, and in the
    /// result the text is marked: [`Rendered::parts`].
    ///
    /// # Errors
    ///
    /// [`Error::ToolsNotShown`] if there are tools, the template [shows none](Self::supports_tools), and they are not
    /// [described](Self::describe_tools) either. [`Error::Refused`] if the template rejects the conversation, for
    /// example because of an unknown role. [`Error::Failed`] if the template fails. [`Error::Limit`] if the template
    /// exceeds a limit. [`Error::Continue`]. [`Error::MediaNotShown`] if the template has no place for a picture or a
    /// sound of a message. [`Error::NoVariant`] for a model that has only other variants.
    #[doc(alias = "apply_chat_template")]
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, Error> {
        let variant = self.pick(conversation.tools.is_some())?;
        let tools = conversation.tools.as_ref().map_or(0, Vec::len);
        let mut shaped = Cow::Borrowed(conversation);
        let is_described = tools > 0 && !self.shows_tools(variant);
        if is_described {
            if !self.describes_tools {
                return Err(Error::ToolsNotShown { tools });
            }
            shaped = Cow::Owned(generic::described(conversation));
        }
        if conversation.typed {
            let wants = history::Wants {
                source: &variant.source,
                takes_system: &|| self.takes_system(variant),
                takes_all: &|roles| self.takes_all(variant, roles),
            };
            shaped = Cow::Owned(history::shaped(&shaped, &wants));
        } else if is_described && !self.takes_system(variant) {
            history::without_system(&mut shaped.to_mut().messages);
        }
        self.render_as(variant, &shaped).or_else(|error| self.render_otherwise(variant, &shaped, error))
    }

    /// Renders a conversation again after the template has refused it, or failed. The conversation is changed as little
    /// as possible. A change is left out if it has no effect. If no change helps, the original error is returned.
    fn render_otherwise(&self, variant: &Variant, given: &Conversation, error: Error) -> Result<Rendered, Error> {
        if !matches!(error, Error::Refused { .. } | Error::Failed { .. }) {
            return Err(error);
        }
        type Shape = fn(&mut Conversation) -> bool;
        let whole_tools: Shape =
            |conversation| conversation.tools.as_mut().is_some_and(|tools| history::with_whole_tools(tools));
        let as_text: Shape =
            |conversation| conversation.typed && history::with_arguments_as_text(&mut conversation.messages);
        let calls_apart: Shape =
            |conversation| conversation.typed && history::with_calls_apart(&mut conversation.messages);
        let shapes = [whole_tools, as_text, calls_apart];
        let mut sets: Vec<u32> = (1..1 << shapes.len()).collect();
        sets.sort_by_key(|set| set.count_ones());
        for set in sets {
            let mut shaped = given.clone();
            let mut chosen = (0..).zip(shapes).filter(|(bit, _)| set & (1 << bit) != 0);
            if chosen.all(|(_, shape)| shape(&mut shaped))
                && let Ok(rendered) = self.render_as(variant, &shaped)
            {
                return Ok(rendered);
            }
        }
        Err(error)
    }

    fn render_as(&self, variant: &Variant, conversation: &Conversation) -> Result<Rendered, Error> {
        let conversation = &*self.in_parts(variant, conversation);
        if conversation.continue_final_message && !variant.source.contains("content") {
            return Err(Error::Continue { reason: "the template shows no content" });
        }
        let mut variables = variables(&self.special, conversation)?;
        // Special tokens come from the template, and not from users, unless the application has replaced them.
        let mut users: Vec<&mut Value> = variables
            .iter_mut()
            .filter(|(name, _)| !self.special.contains_key(name.as_str()))
            .map(|(_, value)| value)
            .collect();
        let stand_ins = self.control.stand_ins(users.iter().map(|value| &**value), &variant.source);
        if let Some(stand_ins) = &stand_ins {
            users.iter_mut().for_each(|value| **value = self.control.protect(value, stand_ins));
        }
        let text = variant.template.render(&variables, conversation.now, self.limits)?;
        let mut rendered = match &stand_ins {
            Some(stand_ins) => self.control.restore(&text, stand_ins),
            None => Rendered::markup(text),
        };
        if conversation.continue_final_message {
            let end = continuing::end(rendered.as_str(), &conversation.messages)?;
            rendered.truncate(end);
        }
        marks::placed(rendered, &conversation.media)
    }
}

/// All variables that a template gets, as `apply_chat_template` puts them together.
fn variables(special: &SpecialTokens, conversation: &Conversation) -> Result<Map<String, Value>, Error> {
    let mut messages = conversation.messages.clone();
    messages.iter_mut().for_each(alias_reasoning);
    if conversation.continue_final_message {
        continuing::mark(&mut messages)?;
    }
    let special = special.iter().map(|(name, text)| (name.as_str(), text.as_str().into()));
    let given = [
        ("messages", messages.into()),
        ("tools", conversation.tools.clone().into()),
        ("documents", conversation.documents.clone().into()),
        ("add_generation_prompt", conversation.add_generation_prompt.into()),
    ];
    let others = conversation.variables.iter().map(|(name, value)| (name.as_str(), value.clone()));
    let all = special.chain(given).chain(others);
    Ok(all.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The keys under which templates look for a message's reasoning. transformers copies the value of one of them to
/// `reasoning_content` and `thinking` (`chat_template_utils.py`, `_alias_reasoning_fields`).
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

fn alias_reasoning(message: &mut Value) {
    let is_there = |name: &&&str| !message[**name].is_null();
    let Some(name) = REASONING.iter().find(is_there) else {
        return;
    };
    let reasoning = message[*name].clone();
    let Some(fields) = message.as_object_mut() else {
        return;
    };
    // If the field is already there, its value stays. But the field moves to the front, as a new one would: some
    // templates print whole messages.
    let thinking = fields.shift_remove("thinking");
    let thinking = thinking.unwrap_or_else(|| reasoning.clone());
    fields.shift_insert(0, "thinking".to_owned(), thinking);
    fields.insert("reasoning_content".to_owned(), reasoning);
}
