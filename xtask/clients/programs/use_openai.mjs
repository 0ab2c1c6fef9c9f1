// OpenAI's client for JavaScript on both of its APIs: text, streams, typed answers by Zod, strict tools and their
// results, and a picture.

import assert from "node:assert";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { client, model, pictureUrl, prompt, question, seenInChat, seenInMessages, sees, url } from "./common.mjs";

const api = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const Forecast = z.object({ rain: z.boolean(), days: z.number().int().min(1).max(9) });
const Weather = z.object({ days: z.number().int().min(1).max(9) });
const said = [{ role: "user", content: prompt }];

const chat = client("openai", "chat completions");
const options = { model, messages: said, max_tokens: 200 };
await chat("text", async () => assert((await api.chat.completions.create(options)).choices[0].message.content));
await chat("stream", async () => {
    let text = "";
    for await (const chunk of await api.chat.completions.create({ ...options, stream: true })) {
        text += chunk.choices[0]?.delta?.content ?? "";
    }
    assert(text);
});
await chat("form", async () => {
    const typed = await api.chat.completions.parse({ ...options, response_format: zodResponseFormat(Forecast, "forecast") });
    assert(typed.choices[0].message.parsed.days <= 9);
});
const tools = [zodFunction({ name: "weather", parameters: Weather })];
let called;
await chat("call", async () => {
    const forced = { tools, tool_choice: "required", parallel_tool_calls: false };
    called = (await api.chat.completions.parse({ ...options, ...forced })).choices[0].message;
    assert(called.tool_calls[0].function.parsed_arguments.days <= 9);
});
await chat("result", async () => {
    const result = { role: "tool", tool_call_id: called.tool_calls[0].id, content: "rain" };
    const messages = [...said, called, result];
    const { choices } = await api.chat.completions.create({ ...options, messages, tools, tool_choice: "none" });
    assert(choices[0].message.content);
});
if (sees) {
    await chat("a picture", async () => {
        const content = [{ type: "image_url", image_url: { url: pictureUrl } }, { type: "text", text: question }];
        const messages = [{ role: "user", content }];
        const seen = await api.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
        // Through another API, the answer about the same picture must be the same.
        assert.equal(seen.choices[0].message.content, await seenInMessages());
    });
}

const responses = client("openai", "responses");
const asked = { model, input: said, max_output_tokens: 200 };
await responses("text", async () => assert((await api.responses.create(asked)).output_text));
await responses("stream", async () => {
    const stream = api.responses.stream(asked);
    let text = "";
    stream.on("response.output_text.delta", ({ delta }) => (text += delta));
    assert.equal((await stream.finalResponse()).output_text, text);
});
await responses("form", async () => {
    const { output_parsed } = await api.responses.parse({ ...asked, text: { format: zodTextFormat(Forecast, "forecast") } });
    assert(output_parsed.days <= 9);
});
const functions = [zodResponsesFunction({ name: "weather", parameters: Weather })];
let response;
await responses("call", async () => {
    const forced = { tools: functions, tool_choice: "required", parallel_tool_calls: false };
    response = await api.responses.parse({ ...asked, ...forced });
    assert(response.output.at(-1).parsed_arguments.days <= 9);
});
await responses("result", async () => {
    const output = { type: "function_call_output", call_id: response.output.at(-1).call_id, output: "rain" };
    const next = { input: [output], previous_response_id: response.id, tools: functions, tool_choice: "none" };
    assert((await api.responses.create({ ...asked, ...next })).output_text);
});
if (sees) {
    await responses("a picture", async () => {
        const image = { type: "input_image", detail: "auto", image_url: pictureUrl };
        const input = [{ role: "user", content: [image, { type: "input_text", text: question }] }];
        const seen = await api.responses.create({ model, input, max_output_tokens: 12, temperature: 0 });
        // Through another API, the answer about the same picture must be the same.
        assert.equal(seen.output_text, await seenInChat());
    });
}
