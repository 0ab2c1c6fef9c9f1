//! One answer in every format, written in the manner of the format's templates: thoughts, content and two calls.

#![allow(dead_code, reason = "each test uses some of it")]

use autoplace_chat::Tool;
use serde_json::{Value, json};

/// An answer, and what it means.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// The format's name.
    pub(crate) name: &'static str,
    /// What templates of it have in them.
    pub(crate) template: &'static str,
    /// The end of the prompt before it.
    pub(crate) prompt: &'static str,
    pub(crate) text: &'static str,
    pub(crate) reasoning: Option<&'static str>,
    pub(crate) content: &'static str,
    pub(crate) ids: [Option<&'static str>; 2],
}

const PLAIN: Sample = Sample {
    name: "",
    template: "",
    prompt: "<|im_start|>assistant\n",
    text: "",
    reasoning: Some("First the weather,\nthen a note."),
    content: "Let me look.",
    ids: [None, None],
};

/// The tools that every sample calls, in this order.
pub(crate) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "get_weather",
            "What the weather will be",
            json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
        ),
        Tool::new(
            "note",
            "Writes something down",
            json!({"type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}}}),
        ),
    ]
}

/// What they are called with.
pub(crate) fn arguments() -> [Value; 2] {
    [json!({"city": "Köln", "days": 3}), json!({"text": "it's \"wet\",\n<b>cold</b>", "tags": ["x", "y"]})]
}

pub(crate) const SAMPLES: &[Sample] = &[
    Sample {
        name: "hermes",
        template: "'<tool_call>\n{\"name\": ' <think> </think>",
        text: "<think>\nFirst the weather,\nthen a note.\n</think>\n\nLet me look.\n\
            <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 3}}\n</tool_call>\n\
            <tool_call>\n{\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}\n</tool_call>",
        ..PLAIN
    },
    Sample {
        name: "qwen3-coder",
        template: "'<tool_call>\n<function=' '<parameter=' </think>",
        prompt: "<|im_start|>assistant\n<think>\n",
        text: "First the weather,\nthen a note.\n</think>\n\nLet me look.\n\n\
            <tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n\
            <tool_call>\n<function=note>\n<parameter=text>\nit's \"wet\",\n<b>cold</b>\n</parameter>\n<parameter=tags>\n[\"x\", \"y\"]\n</parameter>\n</function>\n</tool_call>",
        ..PLAIN
    },
    Sample {
        name: "seed-oss",
        template: "'<seed:think>' '<seed:tool_call>' '<function=' '<parameter='",
        text: "<seed:think>First the weather,\nthen a note.</seed:think>\nLet me look.\n\n\
            <seed:tool_call>\n<function=get_weather>\n<parameter=city>Köln</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n\
            <seed:tool_call>\n<function=note>\n<parameter=text>it's \"wet\",\n<b>cold</b></parameter>\n<parameter=tags>[\"x\", \"y\"]</parameter>\n</function>\n</seed:tool_call>",
        ..PLAIN
    },
    Sample {
        name: "glm",
        template: "'\n<tool_call>' <arg_key> <arg_value> </think>",
        text: "\n<think>First the weather,\nthen a note.</think>\nLet me look.\n\
            <tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n\
            <tool_call>note<arg_key>text</arg_key><arg_value>it's \"wet\",\n<b>cold</b></arg_value><arg_key>tags</arg_key><arg_value>[\"x\", \"y\"]</arg_value></tool_call>",
        ..PLAIN
    },
    Sample {
        name: "hunyuan",
        template: "set X = ':opensource' '<think{}>'.format(X) '<tool_call{}>'.format(X) '<arg_key{}>'.format(X)",
        prompt: "<｜hy_Assistant:opensource｜><think:opensource>",
        text: "First the weather,\nthen a note.</think:opensource>Let me look.<tool_calls:opensource>\n\
            <tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n\
            <arg_value:opensource>Köln</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n\
            <arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n\
            <tool_call:opensource>note<tool_sep:opensource>\n<arg_key:opensource>text</arg_key:opensource>\n\
            <arg_value:opensource>it's \"wet\",\n<b>cold</b></arg_value:opensource>\n<arg_key:opensource>tags</arg_key:opensource>\n\
            <arg_value:opensource>[\"x\", \"y\"]</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        ..PLAIN
    },
    Sample {
        name: "minimax-m2",
        template: "'<minimax:tool_call>' '<think>\n' '</think>'",
        prompt: "]~b]ai\n<think>\n",
        text: "First the weather,\nthen a note.\n</think>\n\nLet me look.\n\
            <minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Köln</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n\
            <invoke name=\"note\">\n<parameter name=\"text\">it's \"wet\",\n<b>cold</b></parameter>\n<parameter name=\"tags\">[\"x\", \"y\"]</parameter>\n</invoke>\n</minimax:tool_call>",
        ..PLAIN
    },
    Sample {
        name: "minimax-m3",
        template: "']<]minimax[>[' '<mm:think>' '</mm:think>'",
        text: "<mm:think>First the weather,\nthen a note.</mm:think>Let me look.]<]minimax[>[<tool_call>\n\
            ]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Köln]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n\
            ]<]minimax[>[<invoke name=\"note\">]<]minimax[>[<text>it's \"wet\",\n<b>cold</b>]<]minimax[>[</text>\
            ]<]minimax[>[<tags>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[<item>y]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[</invoke>\n\
            ]<]minimax[>[</tool_call>",
        ..PLAIN
    },
    Sample {
        name: "deepseek-v3.2",
        template: "'｜DSML｜' + 'tool_calls>' '<think>' '</think>'",
        prompt: "<｜Assistant｜><think>",
        text: "First the weather,\nthen a note.</think>Let me look.\n\n<｜DSML｜tool_calls>\n\
            <｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Köln</｜DSML｜parameter>\n\
            <｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
            <｜DSML｜invoke name=\"note\">\n<｜DSML｜parameter name=\"text\" string=\"true\">it's \"wet\",\n<b>cold</b></｜DSML｜parameter>\n\
            <｜DSML｜parameter name=\"tags\" string=\"false\">[\"x\", \"y\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ..PLAIN
    },
    Sample {
        name: "deepseek",
        template: "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' '</think>'",
        prompt: "<｜Assistant｜><think>\n",
        text: "First the weather,\nthen a note.\n</think>\n\nLet me look.<｜tool▁calls▁begin｜>\
            <｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Köln\", \"days\": 3}\n```<｜tool▁call▁end｜>\n\
            <｜tool▁call▁begin｜>note<｜tool▁sep｜>{\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ..PLAIN
    },
    Sample {
        name: "kimi-k2",
        template: "<|tool_calls_section_begin|><|tool_call_begin|> <think></think>",
        text: "<think>First the weather,\nthen a note.</think>Let me look.<|tool_calls_section_begin|>\
            <|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\":\"Köln\",\"days\":3}<|tool_call_end|>\
            <|tool_call_begin|>functions.note:1<|tool_call_argument_begin|>{\"text\":\"it's \\\"wet\\\",\\n<b>cold</b>\",\"tags\":[\"x\",\"y\"]}<|tool_call_end|><|tool_calls_section_end|>",
        ids: [Some("functions.get_weather:0"), Some("functions.note:1")],
        ..PLAIN
    },
    Sample {
        name: "mistral",
        template: "'[TOOL_CALLS]' '[ARGS]' '[THINK]' '[/THINK]'",
        prompt: "[/INST]",
        text: "[THINK]First the weather,\nthen a note.[/THINK]Let me look.\
            [TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Köln\", \"days\": 3}\
            [TOOL_CALLS][{\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}, \"id\": \"123456789\"}]",
        ids: [Some("abcdefghi"), Some("123456789")],
        ..PLAIN
    },
    Sample {
        name: "harmony",
        template: "<|start|>assistant<|channel|>final<|message|>",
        prompt: "<|start|>assistant",
        text: "<|channel|>analysis<|message|>First the weather,\nthen a note.<|end|>\
            <|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>\
            <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Köln\",\"days\":3}<|call|>\
            <|start|>assistant to=functions.note<|channel|>commentary json<|message|>{\"text\":\"it's \\\"wet\\\",\\n<b>cold</b>\",\"tags\":[\"x\",\"y\"]}<|call|>",
        ..PLAIN
    },
    Sample {
        name: "atem",
        template: "<|start|>assistant to= <|message|> <atem:function_calls>",
        prompt: "<|start|>assistant",
        text: " to=self<|message|>First the weather,\nthen a note.<|eom|><|start|>assistant to=user<|message|>Let me look.<|eom|>\
            <|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name=\"get_weather\">\n\
            <atem:parameter name=\"city\">Köln</atem:parameter>\n<atem:parameter name=\"days\">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>\
            <|start|>assistant to=note<|message|><atem:function_calls>\n<atem:invoke name=\"note\">\n\
            <atem:parameter name=\"text\">it's \"wet\",\n<b>cold</b></atem:parameter>\n<atem:parameter name=\"tags\">[\"x\", \"y\"]</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        ..PLAIN
    },
    Sample {
        name: "functionary-v3.2",
        template: "'>>>all\n' '<|start_header_id|>assistant<|end_header_id|>\n\n>>>'",
        prompt: "<|start_header_id|>assistant<|end_header_id|>\n\n>>>",
        text: "all\nLet me look.>>>get_weather\n{\"city\": \"Köln\", \"days\": 3}>>>note\n{\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}",
        reasoning: None,
        ..PLAIN
    },
    Sample {
        name: "functionary-v3.1",
        template: "'<function=' + name + '>' arguments '</function>' '<|python_tag|>'",
        text: "Let me look.<function=get_weather>{\"city\": \"Köln\", \"days\": 3}</function>\
            <function=note>{\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}</function>",
        reasoning: None,
        ..PLAIN
    },
    Sample {
        name: "gemma-4",
        template: "'<|channel>thought\n' '<channel|>' '<|tool_call>call:'",
        prompt: "<|turn>model\n",
        text: "<|channel>thought\nFirst the weather,\nthen a note.<channel|>Let me look.\
            <|tool_call>call:get_weather{city:<|\"|>Köln<|\"|>,days:3}<tool_call|>\
            <|tool_call>call:note{tags:[<|\"|>x<|\"|>,<|\"|>y<|\"|>],text:<|\"|>it's \"wet\",\n<b>cold</b><|\"|>}<tool_call|>",
        ..PLAIN
    },
    Sample {
        name: "command-r",
        template: "<|START_THINKING|> <|END_THINKING|> <|START_ACTION|> <|START_RESPONSE|>",
        prompt: "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        text: "<|START_THINKING|>First the weather,\nthen a note.<|END_THINKING|><|START_TEXT|>Let me look.<|END_TEXT|><|START_ACTION|>[\n    \
            {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Köln\", \"days\": 3}},\n    \
            {\"tool_call_id\": \"1\", \"tool_name\": \"note\", \"parameters\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}\n]<|END_ACTION|>",
        ids: [Some("0"), Some("1")],
        ..PLAIN
    },
    Sample {
        name: "solar",
        template: "'<|begin|>assistant<|think|>' '<|tool_call:begin|>'",
        prompt: "<|begin|>assistant",
        text: "<|think|>First the weather,\nthen a note.<|end|><|begin|>assistant<|content|>Let me look.<|end|><|begin|>assistant<|tool_calls|>\
            <|tool_call:begin|>k1<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Köln\", \"days\": 3}<|tool_call:end|>\
            <|tool_call:begin|>k2<|tool_call:name|>note<|tool_call:args|>{\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}<|tool_call:end|><|calls|>",
        ids: [Some("k1"), Some("k2")],
        ..PLAIN
    },
    Sample {
        name: "lfm2",
        template: "\"<|tool_call_start|>[\" \"<think>\" \"</think>\"",
        text: "<think>First the weather,\nthen a note.</think>Let me look.<|tool_call_start|>[get_weather(city='Köln', days=3), \
            note(text='it\\'s \"wet\",\\n<b>cold</b>', tags=[\"x\", \"y\"])]<|tool_call_end|>",
        ..PLAIN
    },
    Sample {
        name: "apertus",
        template: "'<|inner_prefix|>' '<|inner_suffix|>' '<|tools_prefix|>'",
        prompt: "<|assistant_start|>",
        text: "<|inner_prefix|>First the weather,\nthen a note.<|inner_suffix|>Let me look.<|tools_prefix|>[{\"get_weather\": {\"city\": \"Köln\", \"days\": 3}}, \
            {\"note\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}]<|tools_suffix|>",
        ..PLAIN
    },
    Sample {
        name: "nemotron",
        template: "'<TOOLCALL>[' '<think></think>'",
        prompt: "<SPECIAL_11>Assistant\n<think>\n",
        text: "First the weather,\nthen a note.\n</think>\nLet me look.\n<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 3}}, \
            {\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}]</TOOLCALL>",
        ..PLAIN
    },
    Sample {
        name: "tool-calls-tag",
        template: "'<tool_calls>[' 'Here are my reasoning steps:\n' '[BEGIN FINAL RESPONSE]'",
        prompt: "<|begin_assistant|>\nHere are my reasoning steps:\n",
        text: "First the weather,\nthen a note.\n[BEGIN FINAL RESPONSE]\nLet me look.\n<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 3}}, \
            {\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}]</tool_calls>",
        ..PLAIN
    },
    Sample {
        name: "gigachat",
        template: "'<|role_sep|>\n' '<|message_sep|>' '<|function_call|>'",
        prompt: "assistant<|role_sep|>\n",
        text: "Let me look.<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 3}}<|message_sep|>\n\n\
            function call<|role_sep|>\n{\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}",
        reasoning: None,
        ..PLAIN
    },
    Sample {
        name: "granite",
        template: "respond only with <|tool_call|> <think></think> <response></response>",
        prompt: "<|start_of_role|>assistant<|end_of_role|>",
        text: "<think>First the weather,\nthen a note.</think>\n<response>Let me look.</response>\n<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 3}}, \
            {\"name\": \"note\", \"arguments\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}]",
        ..PLAIN
    },
    Sample {
        name: "llama-3",
        template: "'<|start_header_id|>ipython<|end_header_id|>' '\"parameters\": '",
        prompt: "<|start_header_id|>assistant<|end_header_id|>\n\n",
        text: "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Köln\", \"days\": 3}}; \
            {\"name\": \"note\", \"parameters\": {\"text\": \"it's \\\"wet\\\",\\n<b>cold</b>\", \"tags\": [\"x\", \"y\"]}}",
        reasoning: None,
        content: "",
        ..PLAIN
    },
];
